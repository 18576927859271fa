#include "dist/peers.h"

#include <fmt/format.h>

#include <algorithm>

#include "dist/ranks.h"
#include "verbatim/error.h"

namespace verbatim::dist {
namespace {

using Clock = std::chrono::steady_clock;

/// Where arenas have so much, a rank that is ahead waits for its receivers and takes no more
/// memory.
constexpr int64_t kAmple = int64_t{512} << 20;

}  // namespace

Peers::Peers(const std::string& name, int32_t world, int32_t rank, double opening, double timeout,
             const std::function<std::unique_ptr<PeerDevice>()>& make_device)
    : timeout_(check_seconds("timeout", timeout)),
      board_(name, world, rank, opening),
      device_(make_device()),
      outbox_(world),
      sent_(static_cast<size_t>(world)),
      settled_(sent_),
      received_(sent_),
      waits_(2 * static_cast<size_t>(world)),
      backlog_(static_cast<size_t>(world)) {
  add_arena(0);
  board_.meet(device_->address());
  for (int32_t r = 0; r < world; ++r) {
    device_->check_reach(board_.address(r));
    if (r != rank) arena(r, 0);  // what fails with memory of others fails here
    taken_by(r).counter = &board_.taken(rank, r);
    ready_from(r).counter = &board_.ready(r, rank);
  }
  device_->attach(board_.counters());
  board_.start();
  watch_ = std::thread([this] { watch(); });
}

Peers::~Peers() {
  wait_until(timeout_, [this] { return failed_ || has_pulled(); });
  if (device_->close_opened()) board_.leave();
  wait_until(timeout_, [this] { return failed_ || is_over(); });
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
    changed_.notify_all();
  }
  watch_.join();
  give_up("the transport is closed");
  if (!board_.all_have_left()) device_->keep_made();
  device_.reset();
}

void Peers::begin(const RunOptions& run) {
  check();
  device_->follow(run.stream);
  settle();  // what was sent before is received in the calls before
}

void Peers::learn_taken() {
  for (int32_t r = 0; r < board_.world(); ++r) {
    const uint32_t taken = board_.taken(board_.rank(), r).value;
    outbox_.taken(r, taken);
    // A wait that is over stays so: numbers go round, and would come to lie before it again.
    if (Counter::is_at(taken, taken_by(r).number)) waits(taken_by(r), taken, 0);
  }
}

std::byte* Peers::room(int64_t bytes) {
  check();
  learn_taken();
  if (std::byte* found = outbox_.find(bytes)) return found;
  if (outbox_.bytes() >= kAmple) {
    // No circle: a plan is proved for ranks that wait for what they sent before their last launch.
    for (int32_t r = 0; r < board_.world(); ++r) {
      if (Counter::is_at(outbox_.taken(r), settled_[r])) continue;
      waits(taken_by(r), settled_[r], 0);
      device_->await(*taken_by(r).counter, settled_[r]);
      outbox_.taken(r, settled_[r]);
    }
    check();  // on a CPU the wait is over
    if (std::byte* found = outbox_.find(bytes)) return found;
  }
  add_arena(bytes);
  return outbox_.find(bytes);
}

void Peers::add_arena(int64_t bytes) {
  const int64_t size = outbox_.next_arena(bytes);
  const int32_t number = arenas_++;
  if (number == Board::kArenas)
    fail(fmt::format("messages of rank {} need more than {} bytes", board_.rank(), size));
  Board::Arena& arena = board_.arena(board_.rank(), number);
  arena.bytes = size;
  outbox_.add(device_->make_arena(size, arena.handle), size);
}

Outbox::Place Peers::place(std::span<const std::byte> bytes) {
  if (const auto found = outbox_.place_of(bytes)) return *found;
  std::byte* copy = room(std::ssize(bytes));
  if (!bytes.empty()) device_->copy(copy, bytes.data(), std::ssize(bytes));
  return *outbox_.place_of({copy, bytes.size()});
}

void Peers::send(int32_t to, int64_t message, std::span<const std::byte> bytes) {
  check();
  Head head{message, std::ssize(bytes), 0, 0, 0};
  if (message < 0) {
    post(to, std::as_bytes(std::span(&head, 1)));
    post(to, bytes);
    return;
  }
  or_fail([&] {
    const Outbox::Place place = this->place(bytes);
    head.arena = place.arena;
    head.offset = place.offset;
    head.number = ++sent_[to];
    outbox_.sent(to, head.number);
    device_->signal(board_.ready(board_.rank(), to), head.number);
  });
  post(to, std::as_bytes(std::span(&head, 1)));  // whoever waits for the signal knows that it comes
}

void Peers::post(int32_t to, std::span<const std::byte> bytes) {
  const std::lock_guard lock(mutex_);
  std::vector<std::byte>& backlog = backlog_[to];
  if (backlog.empty()) bytes = bytes.subspan(board_.ring(board_.rank(), to).write(bytes));
  if (bytes.empty()) return;
  backlog.insert(backlog.end(), bytes.begin(), bytes.end());
  changed_.notify_all();
}

Peers::Head Peers::read_head(int32_t from, int64_t message, std::span<std::byte> bytes) {
  Head head{};
  read(from, message, std::as_writable_bytes(std::span(&head, 1)));
  if (head.message != message || head.bytes != std::ssize(bytes))
    fail(fmt::format("{} with {} bytes came to rank {}, which expected {} with {} bytes",
                     name_of_message(head.message, from), head.bytes, board_.rank(),
                     name_of_message(message, from), bytes.size()));
  return head;
}

bool Peers::receive(int32_t from, int64_t message, std::span<std::byte> bytes) {
  if (message < 0) {
    read_head(from, message, bytes);
    read(from, message, bytes);
    return true;
  }
  const PeerDevice::Pull pull = next(from, message, bytes);
  or_fail([&] { device_->pull(pull); });
  return true;
}

bool Peers::expect(int32_t from, int64_t message, std::span<std::byte> bytes) {
  const PeerDevice::Pull pull = next(from, message, bytes);
  expected_[{from, message}] = pull.number;
  or_fail([&] { device_->expect(pull); });
  return true;
}

void Peers::came(int32_t from, int64_t message) {
  if (const auto expected = expected_.extract({from, message}))
    device_->join(from, expected.mapped());
}

PeerDevice::Pull Peers::next(int32_t from, int64_t message, std::span<std::byte> bytes) {
  const Head head = read_head(from, message, bytes);
  if (head.number != ++received_[from])
    fail(fmt::format("{} is its number {}; number {} is lost", name_of_message(message, from),
                     head.number, received_[from]));
  waits(ready_from(from), head.number, message);
  PeerDevice::Pull pull{.from = from,
                        .to = bytes.data(),
                        .at = nullptr,
                        .bytes = head.bytes,
                        .ready = &board_.ready(from, board_.rank()),
                        .taken = &board_.taken(from, board_.rank()),
                        .number = head.number};
  or_fail([&] { pull.at = arena(from, head.arena) + head.offset; });
  return pull;
}

const std::byte* Peers::arena(int32_t from, int32_t number) {
  const std::byte*& data = open_[{from, number}];
  if (!data) {
    const Board::Arena& arena = board_.arena(from, number);
    data = device_->open_arena(arena.handle, arena.bytes);
  }
  return data;
}

void Peers::read(int32_t from, int64_t message, std::span<std::byte> bytes) {
  ByteRing& ring = board_.ring(from, board_.rank());
  while (!bytes.empty()) {
    bool ended = false;
    const bool there = wait_until(timeout_, [&] {
      check();
      ended = board_.has_ended(from);  // before the last look: what it sent is there by then
      const size_t count = ring.read(bytes);
      bytes = bytes.subspan(count);
      return count > 0 || ended;
    });
    if (there && (!ended || bytes.empty())) continue;
    fail(missed(message, from,
                ended ? "it has ended" : fmt::format("nothing came in {} s", timeout_)));
  }
}

std::string Peers::missed(int64_t message, int32_t from, std::string_view why) const {
  return fmt::format("{} did not come to rank {}; {}", name_of_message(message, from),
                     board_.rank(), why);
}

void Peers::waits(Wait& wait, uint32_t number, int64_t message) {
  wait.message = message;
  wait.number = number;
}

void Peers::watch() {
  std::vector<Watched> seen(waits_.size(), {0, Clock::now()});
  std::unique_lock lock(mutex_);
  while (!stopped_) {
    push();
    const bool more = std::ranges::any_of(backlog_, [](const auto& rest) { return !rest.empty(); });
    lock.unlock();
    board_.find_ended();
    if (const std::string trouble = overdue(seen); !trouble.empty()) give_up(trouble);
    lock.lock();
    changed_.wait_for(lock, more ? std::chrono::microseconds(50) : std::chrono::milliseconds(20));
  }
}

void Peers::push() {
  for (int32_t to = 0; to < board_.world(); ++to) {
    std::vector<std::byte>& rest = backlog_[to];
    if (rest.empty()) continue;
    const size_t count = board_.ring(board_.rank(), to).write(rest);
    rest.erase(rest.begin(), rest.begin() + static_cast<std::ptrdiff_t>(count));
  }
}

std::string Peers::overdue(std::vector<Watched>& seen) const {
  const auto now = Clock::now();
  for (size_t w = 0; w < waits_.size(); ++w) {
    const auto rank = static_cast<int32_t>(w / 2);
    const bool ended = board_.has_ended(rank);  // before the counter is read: that was its last
    const Wait& wait = waits_[w];
    const uint32_t value = wait.counter->value;
    const bool is_there = Counter::is_at(value, wait.number);
    if (is_there || value != seen[w].value) seen[w] = {value, now};
    const bool late = now - seen[w].since > std::chrono::duration<double>(timeout_);
    if (is_there || !(ended || late)) continue;
    const std::string why = ended ? "it has ended" : fmt::format("its work took {} s", timeout_);
    if (w % 2 == 0)
      return fmt::format("rank {} did not take messages of rank {}; {}", rank, board_.rank(), why);
    return missed(wait.message, rank, why);
  }
  return {};
}

void Peers::give_up(const std::string& trouble) {
  {
    const std::lock_guard lock(mutex_);
    if (!failed_) trouble_ = trouble;
    failed_ = true;
  }
  board_.end();
  for (const Wait& wait : waits_)
    if (!wait.counter->has_reached(wait.number)) wait.counter->value = wait.number.load();
}

void Peers::fail(const std::string& trouble) {
  give_up(trouble);
  stop();
}

void Peers::or_fail(const std::function<void()>& what) {
  try {
    what();
  } catch (const Error& error) {
    if (failed_) throw;
    fail(error.what());
  }
}

void Peers::check() {
  if (failed_) stop();
}

void Peers::stop() {
  // The caller gives memory back that pulls write.
  for (const auto& [message, number] : std::exchange(expected_, {}))
    device_->join(message.first, number);
  device_->join();
  const std::lock_guard lock(mutex_);
  throw Error(ErrorCode::device, "peers.transfer", trouble_);
}

bool Peers::has_pulled() const {
  for (int32_t r = 0; r < board_.world(); ++r)
    if (!board_.taken(r, board_.rank()).has_reached(received_[r])) return false;
  return true;
}

bool Peers::is_over() {
  const std::lock_guard lock(mutex_);
  for (int32_t r = 0; r < board_.world(); ++r) {
    const bool taken = backlog_[r].empty() && board_.taken(board_.rank(), r).has_reached(sent_[r]);
    if (!taken && !board_.has_left(r) && !board_.has_ended(r)) return false;
  }
  return true;
}

}  // namespace verbatim::dist

namespace verbatim {

std::unique_ptr<Transport> make_peers(const std::string& name, int32_t world, int32_t rank,
                                      const std::string& device, double opening, double timeout) {
  return std::make_unique<dist::Peers>(name, world, rank, opening, timeout,
                                       [&] { return make_peer_device(device); });
}

}  // namespace verbatim
