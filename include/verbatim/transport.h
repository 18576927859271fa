// How bytes get from rank to rank: what a program brings whose ranks are processes or threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "verbatim/run.h"

namespace verbatim {

/// The way of one rank to the others. Each rank has its own, and calls it from the thread that runs
/// the rank, one call at a time. Between two ranks, messages are received, or expected, in the
/// sequence in which they are sent; `message` is a number for engines with tags or without order,
/// from 0 on in a plan and below 0 in a comparison. A transfer that fails throws Error(device).
class Transport {
 public:
  virtual ~Transport() = default;

  /// In front of a call's messages from 0 on, by a ContextParallel only where on_device().
  virtual void begin(const RunOptions& /*run*/) {}
  /// Memory for the messages that are sent next, where messages lie: they are made there, one
  /// behind another; each is the transport's own again with its send(), and the rest with the next
  /// call. Null: the transport has none, and send() has to copy.
  virtual std::byte* room(int64_t /*bytes*/) { return nullptr; }
  /// Returns when the bytes may be overwritten, or where they are in room(), at once. Must not wait
  /// until they are received.
  virtual void send(int32_t to, int64_t message, std::span<const std::byte> bytes) = 0;
  /// Fills `bytes` with the message. False, at once: it is not there yet, and is asked for again. A
  /// transport that waits returns true. Throws Error when the message has another size.
  virtual bool receive(int32_t from, int64_t message, std::span<std::byte> bytes) = 0;
  /// As receive(), but the bytes may come until came(), beside the work behind this; until then
  /// they are the transport's.
  virtual bool expect(int32_t from, int64_t message, std::span<std::byte> bytes) {
    if (!receive(from, message, bytes)) return false;
    arrived();
    return true;
  }
  /// The work behind this finds the bytes of a message that was expected. Of each also when a run
  /// fails, by this or otherwise.
  virtual void came(int32_t /*from*/, int64_t /*message*/) {}
  /// Whether what is expected comes beside the work: where on_device(), a ContextParallel then has
  /// messages sent, and expected, a launch before they are needed.
  virtual bool overlaps() const { return false; }
  /// Behind receives of messages from 0 on that follow one another, before anything uses their
  /// bytes: those may still be under way until then, but for the work behind this.
  virtual void arrived() {}
  /// In front of each launch, by a ContextParallel only where on_device(): the work on
  /// RunOptions::stream goes on when all that was sent is taken. For sends that hold
  /// multiprocessors while they wait: chains of a launch wait for each other, and so need all of
  /// these at once.
  virtual void settle() {}

  /// Where messages from 0 on lie that a ContextParallel moves for a GPU. False: in pinned memory
  /// of the host, to which it copies them. True: on the GPU, read, overwritten and written in
  /// sequence with the work on RunOptions::stream. Those below 0 lie in the host's memory.
  virtual bool on_device() const { return false; }
};

/// A transport between ranks whose devices are in one host: a receiver copies from the sender's
/// memory, a GPU by its copy engines, and nothing waits for a receiver. All ranks call this with
/// the same `name`, 1 to 200 characters without / that no other ranks of the host use at the time,
/// and `device` as AttentionOptions have it, all CPUs or all GPUs, which they may share. Waits
/// until all are ready: `opening`, seconds from the call on in which they must be; `timeout`,
/// seconds that a rank waits in a transfer.
///
/// Throws Error: (invalid_argument) for a bad or used name, another world, no such rank or seconds
/// that are not above 0, (io) without shared memory, (unsupported) where a device cannot read
/// another's memory, (device) naming a rank that is not ready in time, or later a message that did
/// not come; after that every call throws it. A call whose work on a GPU waits in vain ends; its
/// results are of no use, and the next call says so. One call at a time uses it, whatever it is of.
/// Its end waits until all that was sent is taken.
std::unique_ptr<Transport> make_peers(const std::string& name, int32_t world, int32_t rank,
                                      const std::string& device, double opening, double timeout);

}  // namespace verbatim
