#include "dist/board.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "verbatim/dist.h"
#include "verbatim/error.h"

namespace verbatim::dist {
namespace {

constexpr const char* kOperation = "peers.open";
constexpr size_t kPage = 4096;

size_t in_pages(size_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

void check_asked(const std::string& name, int32_t world, int32_t rank) {
  const bool good = !name.empty() && name.size() <= 200 && name.find('/') == std::string::npos;
  if (!good)
    throw Error(ErrorCode::invalid_argument, kOperation, "ranks cannot meet by that name",
                {"name", "'" + name + "'", "1 to 200 characters, none of them /", ""});
  if (world < 1)
    throw Error(ErrorCode::invalid_argument, kOperation, "a world has no rank",
                {"world", std::to_string(world), "1 rank or more", "1"});
  if (world > kMostRanks)
    throw Error(ErrorCode::invalid_argument, kOperation, "there are too many ranks",
                {"world", std::to_string(world), fmt::format("1 to {}", kMostRanks),
                 std::to_string(kMostRanks)});
  if (rank < 0 || rank >= world)
    throw Error(ErrorCode::invalid_argument, kOperation, "there is no such rank",
                {"rank", std::to_string(rank), fmt::format("0 to {}", world - 1), "0"});
}

}  // namespace

double check_seconds(const char* argument, double seconds) {
  if (seconds > 0) return seconds;
  throw Error(ErrorCode::invalid_argument, kOperation, "ranks cannot wait for so long",
              {argument, fmt::format("{}", seconds), "more than 0 seconds", "300"});
}

Board::Board(const std::string& name, int32_t world, int32_t rank, double opening)
    : name_("/verbatim-" + name),
      world_(world),
      rank_(rank),
      opening_(check_seconds("opening", opening)) {
  check_asked(name, world, rank);
  // Counters are pages of their own: a GPU has those alone.
  const size_t pairs = pair(world, 0), counters = in_pages(2 * pairs * sizeof(Counter));
  const size_t entries = in_pages(world * sizeof(Entry));
  bytes_ = counters + entries + pairs * sizeof(ByteRing);
  int file = -1;
  if (rank == 0) {
    file = shm_open(name_.c_str(), O_RDWR | O_CREAT | O_EXCL, 0600);
  } else {
    struct stat found {};
    const bool there = wait_until(remaining(), [&] {
      if (file < 0) file = shm_open(name_.c_str(), O_RDWR, 0);
      return file >= 0 ? fstat(file, &found) == 0 && found.st_size > 0 : errno != ENOENT;
    });
    if (!there) {
      if (file >= 0) ::close(file);
      throw Error(ErrorCode::device, kOperation,
                  fmt::format("rank 0 is not on this host, or was not here in {} s", opening),
                  {"rank", std::to_string(rank), "ranks of one host that give one name", ""});
    }
    if (file >= 0 && found.st_size != static_cast<off_t>(bytes_)) {
      ::close(file);
      throw Error(ErrorCode::invalid_argument, kOperation, "rank 0 has another number of ranks",
                  {"world", std::to_string(world), "that of rank 0", ""});
    }
  }
  int trouble = file < 0 ? errno : 0;
  if (trouble == EEXIST)
    throw Error(ErrorCode::invalid_argument, kOperation, "ranks of this host meet by that name now",
                {"name", name, "one that no others use", ""});
  // Memory that is not there is found here, not when it is written; the others see no size before.
  if (trouble == 0 && rank == 0) trouble = posix_fallocate(file, 0, static_cast<off_t>(bytes_));
  void* data = MAP_FAILED;
  if (trouble == 0) data = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  const int last = trouble != 0 ? trouble : errno;
  if (file >= 0) ::close(file);
  if (data == MAP_FAILED) {
    if (rank == 0) shm_unlink(name_.c_str());
    throw Error(ErrorCode::io, kOperation,
                fmt::format("no {} bytes of shared memory; got {}", bytes_, std::strerror(last)));
  }
  memory_ = static_cast<std::byte*>(data);
  counters_ = reinterpret_cast<Counter*>(memory_);
  entries_ = reinterpret_cast<Entry*>(memory_ + counters);
  rings_ = reinterpret_cast<ByteRing*>(memory_ + counters + entries);
  try {
    find_others();
  } catch (...) {
    close();
    throw;
  }
}

Board::~Board() { close(); }

void Board::close() {
  unlink();
  end();
  for (const pollfd& process : processes_)
    if (process.fd >= 0) ::close(process.fd);
  munmap(memory_, bytes_);
}

bool Board::all_have_left() const {
  for (int32_t r = 0; r < world_; ++r)
    if (!has_left(r)) return false;
  return true;
}

void Board::unlink() {
  if (rank_ == 0 && !std::exchange(unlinked_, true)) shm_unlink(name_.c_str());
}

double Board::remaining() const {
  const auto passed = std::chrono::steady_clock::now() - begun_;
  return opening_ - std::chrono::duration<double>(passed).count();
}

void Board::await_all(std::atomic<bool> Entry::*sign) {
  entries_[rank_].*sign = true;
  for (int32_t r = 0; r < world_; ++r) {
    const std::atomic<bool>& there = entries_[r].*sign;
    const bool over = wait_until(remaining(), [&] { return there || has_ended(r); });
    if (there) continue;
    throw Error(ErrorCode::device, kOperation,
                over ? fmt::format("rank {} has ended", r)
                     : fmt::format("rank {} was not {} in {} s", r,
                                   entries_[r].here ? "ready" : "here", opening_));
  }
}

void Board::find_others() {
  Entry& own = entries_[rank_];
  struct stat processes {};
  own.process = getpid();
  own.processes = stat("/proc/self/ns/pid", &processes) == 0 ? processes.st_ino : 0;
  await_all(&Entry::here);
  unlink();
  for (int32_t r = 0; r < world_; ++r) {
    const Entry& other = entries_[r];
    const bool known = own.processes != 0 && other.processes == own.processes;
    const long file = known ? syscall(SYS_pidfd_open, other.process, 0) : -1;
    processes_.push_back({static_cast<int>(file), POLLIN, 0});
  }
}

void Board::meet(const std::string& address) {
  auto& own = entries_[rank_].address;
  address.copy(own.data(), own.size() - 1);
  await_all(&Entry::told);
}

void Board::find_ended() {
  if (poll(processes_.data(), processes_.size(), 0) <= 0) return;
  for (int32_t r = 0; r < world_; ++r)
    if (processes_[r].revents != 0) entries_[r].ended = true;
}

std::span<Counter> Board::counters() const {
  return {counters_, static_cast<size_t>(2 * pair(world_, 0))};
}

}  // namespace verbatim::dist
