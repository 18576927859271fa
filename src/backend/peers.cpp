// Ranks on the CPUs of a host: arenas are files in memory, which others open by their process.
#include "backend/peers.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <optional>
#include <thread>
#include <vector>

#include "backend/backend.h"

namespace verbatim {
namespace {

constexpr const char* kOperation = "peers.memory";

[[noreturn]] void fail(const char* what) {
  throw Error(ErrorCode::device, kOperation, fmt::format("{}: {}", what, std::strerror(errno)));
}

/// A file, open and in memory.
class MappedFile {
 public:
  MappedFile(int file, int64_t bytes, int access) : file_(file), bytes_(bytes) {
    void* const data = mmap(nullptr, bytes_, access, MAP_SHARED, file_, 0);
    if (data == MAP_FAILED) {
      close(file_);
      fail("an arena has no room");
    }
    data_ = static_cast<std::byte*>(data);
  }
  ~MappedFile() {
    munmap(data_, bytes_);
    close(file_);
  }
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  std::byte* data() const { return data_; }

 private:
  int file_;
  size_t bytes_;
  std::byte* data_;
};

/// What no other file has: its number is its own in its file system alone.
struct FileId {
  dev_t system;
  ino_t number;
  bool operator==(const FileId&) const = default;
};

std::optional<FileId> id_of(int file) {
  struct stat found {};
  if (fstat(file, &found) != 0) return std::nullopt;
  return FileId{found.st_dev, found.st_ino};
}

struct Handle {
  pid_t process;
  int file;
  FileId arena;  // what is there: among other processes the number may be another one's
};
static_assert(sizeof(Handle) <= sizeof(ArenaHandle));

class CpuPeerDevice final : public PeerDevice {
 public:
  std::string address() const override { return "cpu"; }
  void check_reach(const std::string& address) const override {
    if (address != "cpu")
      throw Error(ErrorCode::unsupported, "peers.open", "a CPU cannot read the memory of a GPU",
                  {"device", address, "cpu on every rank, or none", "cpu"});
  }
  void attach(std::span<Counter>) override {}

  std::byte* make_arena(int64_t bytes, ArenaHandle& handle) override {
    const int file = memfd_create("verbatim", MFD_CLOEXEC);
    const std::optional<FileId> id = file < 0 ? std::nullopt : id_of(file);
    if (!id || ftruncate(file, bytes) != 0) {
      if (file >= 0) close(file);
      fail("an arena cannot be made");
    }
    auto& arena =
        made_.emplace_back(std::make_unique<MappedFile>(file, bytes, PROT_READ | PROT_WRITE));
    const Handle own{getpid(), file, *id};
    std::memcpy(handle.data(), &own, sizeof own);
    return arena->data();
  }
  const std::byte* open_arena(const ArenaHandle& handle, int64_t bytes) override {
    Handle other;
    std::memcpy(&other, handle.data(), sizeof other);
    const std::string path = fmt::format("/proc/{}/fd/{}", other.process, other.file);
    // What is no arena may be a pipe, which would wait for a writer.
    const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    const std::string got = file < 0 ? std::strerror(errno) : "another file";
    if (file < 0 || id_of(file) != other.arena) {
      if (file >= 0) close(file);
      throw Error(ErrorCode::unsupported, kOperation,
                  "memory of another rank cannot be opened by its process",
                  {"transport", got, "ranks of one user that see each other in /proc",
                   "the transport of a process group"});
    }
    return opened_.emplace_back(std::make_unique<MappedFile>(file, bytes, PROT_READ))->data();
  }
  bool close_opened() override {
    opened_.clear();
    return true;
  }
  void keep_made() override {}  // files last as long as somebody has them

  void follow(void*) override {}
  void copy(std::byte* to, const std::byte* from, int64_t bytes) override {
    std::memcpy(to, from, bytes);
  }
  void signal(Counter& counter, uint32_t number) override { counter.value = number; }
  void await(const Counter& counter, uint32_t number) override {
    while (!counter.has_reached(number)) std::this_thread::yield();
  }
  void pull(const Pull& pull) override {
    await(*pull.ready, pull.number);
    if (pull.bytes > 0) copy(pull.to, pull.at, pull.bytes);
    signal(*pull.taken, pull.number);
  }
  void join() override {}
  void expect(const Pull& pull) override { this->pull(pull); }
  void join(int32_t, uint32_t) override {}

 private:
  std::vector<std::unique_ptr<MappedFile>> made_, opened_;
};

}  // namespace

std::unique_ptr<PeerDevice> make_cpu_peer_device() { return std::make_unique<CpuPeerDevice>(); }

std::unique_ptr<PeerDevice> make_peer_device(std::string_view device) {
  const int index = device_index(device);
  return index < 0 ? make_cpu_peer_device() : make_cuda_peer_device(index);
}

}  // namespace verbatim
