// Runs of visits, kept in 64 bits each.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <vector>

namespace verbatim {

/// Consecutive visits of a chain: tiles first, first + step, ... of the streamed axis (query tiles
/// in the backward, KV tiles in the forward), cut by the same slices.
struct Run {
  int32_t q_head = 0;  // query head inside the group whose rows are visited
  int32_t first = 0, count = 0, step = 1;
  int32_t addend = 0, addend_step = 0;  // backward: place of each visit in the sum of its dQ row
  int32_t slice_begin = 0, slice_count = 0;  // as in TileRun; 0 slices: nothing to mask
  int32_t addend_every = 1;  // visits that share an addend before it steps: KV tiles are wider

  constexpr int32_t tile(int32_t i) const { return first + i * step; }
  constexpr int32_t addend_of(int32_t i) const {
    return i < addend_every ? addend : addend + i / addend_every * addend_step;
  }
  bool operator==(const Run&) const = default;
};

/// A run as a word, if its fields fit: of query head 0, in steps of 1 or -1, and
///   bits  0 to 17  first          36 to 38  slice_count
///        18 to 35  addend         63        0; 1 marks the place of a run that does not fit
/// With slices, addend_step is 0 and addend_every 1:
///        39 to 59  slice_begin    60 to 61  count - 1            62  step < 0
/// Without any, slice_begin is 0:
///        39 to 45  count - 1      46 to 56  addend_step + 1024
///        57 to 61  addend_every - 1                              62  step < 0
struct RunWord {
  static constexpr uint64_t kWide = uint64_t{1} << 63;

  /// Whether all fields hold what is in `run`, and unpack() gives it back.
  static constexpr bool fits(const Run& run) {
    // Of a negative number the high bits are set.
    const auto below = [](int64_t value, int bits) {
      return (static_cast<uint64_t>(value) >> bits) == 0;
    };
    if (run.q_head != 0 || !below(run.first, 18) || !below(run.addend, 18) ||
        (run.step != 1 && run.step != -1) || !below(run.slice_count, 3))
      return false;
    if (run.slice_count != 0)
      return below(run.slice_begin, 21) && below(int64_t{run.count} - 1, 2) &&
             run.addend_step == 0 && run.addend_every == 1;
    return run.slice_begin == 0 && below(int64_t{run.count} - 1, 7) &&
           below(int64_t{run.addend_step} + 1024, 11) && below(int64_t{run.addend_every} - 1, 5);
  }
  /// Of a run that fits.
  static constexpr uint64_t pack(const Run& run) {
    const uint64_t common = field(run.first, 0, 18) | field(run.addend, 18, 18) |
                            field(run.slice_count, 36, 3) | field(run.step < 0, 62, 1);
    if (run.slice_count != 0)
      return common | field(run.slice_begin, 39, 21) | field(int64_t{run.count} - 1, 60, 2);
    return common | field(int64_t{run.count} - 1, 39, 7) |
           field(int64_t{run.addend_step} + 1024, 46, 11) |
           field(int64_t{run.addend_every} - 1, 57, 5);
  }
  static constexpr Run unpack(uint64_t word) {
    Run run{.first = at(word, 0, 18),
            .step = 1 - 2 * at(word, 62, 1),
            .addend = at(word, 18, 18),
            .slice_count = at(word, 36, 3)};
    if (run.slice_count != 0) {
      run.slice_begin = at(word, 39, 21);
      run.count = at(word, 60, 2) + 1;
    } else {
      run.count = at(word, 39, 7) + 1;
      run.addend_step = at(word, 46, 11) - 1024;
      run.addend_every = at(word, 57, 5) + 1;
    }
    return run;
  }
  /// Whether `word` is the run of `before` with an addend that is `more` greater, of [1, 2^18). Of
  /// wide runs: no.
  static constexpr bool is_later(uint64_t word, uint64_t before, int32_t more) {
    return word - before == static_cast<uint64_t>(more) << 18 && at(word, 18, 18) >= more &&
           (word & kWide) == 0;
  }

 private:
  static constexpr uint64_t mask(int bits) { return (uint64_t{1} << bits) - 1; }
  static constexpr uint64_t field(int64_t value, int bit, int bits) {
    return (static_cast<uint64_t>(value) & mask(bits)) << bit;
  }
  static constexpr int32_t at(uint64_t word, int bit, int bits) {
    return static_cast<int32_t>(word >> bit & mask(bits));
  }
};

/// Neighbouring runs of PackedRuns, read as a list of Run: each is unpacked as it is read, with an
/// addend that is `more` greater. Holds as long as nothing is added to these.
class RunView {
 public:
  class Iterator {
   public:
    using value_type = Run;
    using difference_type = ptrdiff_t;
    Iterator() = default;
    Iterator(const uint64_t* word, const Run* wide, int32_t more)
        : word_(word), wide_(wide), more_(more) {}
    Run operator*() const {
      Run run = *word_ & RunWord::kWide ? wide_[*word_ & ~RunWord::kWide] : RunWord::unpack(*word_);
      run.addend += more_;
      return run;
    }
    Iterator& operator++() { return ++word_, *this; }
    Iterator operator++(int) {
      Iterator before = *this;
      ++word_;
      return before;
    }
    bool operator==(const Iterator& other) const { return word_ == other.word_; }

   private:
    const uint64_t* word_ = nullptr;
    const Run* wide_ = nullptr;
    int32_t more_ = 0;
  };

  RunView() = default;
  /// `wide`: the runs that do not fit a word, which has their place here.
  RunView(const uint64_t* words, size_t size, const Run* wide, int32_t more = 0)
      : words_(words), size_(size), wide_(wide), more_(more) {}

  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  Run operator[](size_t i) const { return *Iterator(words_ + i, wide_, more_); }
  Run front() const { return (*this)[0]; }
  Run back() const { return (*this)[size_ - 1]; }
  Iterator begin() const { return {words_, wide_, more_}; }
  Iterator end() const { return {words_ + size_, wide_, more_}; }
  RunView part(size_t first, size_t count) const { return {words_ + first, count, wide_, more_}; }
  /// These with addends that are `more` greater.
  RunView later(int32_t more) const { return {words_, size_, wide_, more_ + more}; }
  /// Whether both are the same place of the same list, with the same addends.
  bool is(const RunView& other) const {
    return words_ == other.words_ && size_ == other.size_ && more_ == other.more_;
  }
  /// Whether each run is that of `other`, which has as many, with an addend that is one more. Of
  /// runs that do not fit a word: no.
  bool is_next(const RunView& other) const {
    const int32_t more = other.more_ + 1 - more_;
    return more > 0 &&
           std::equal(words_, words_ + size_, other.words_, [more](uint64_t word, uint64_t before) {
             return RunWord::is_later(word, before, more);
           });
  }
  /// Whether both read the same.
  bool operator==(const RunView& other) const {
    return is(other) || std::ranges::equal(*this, other);
  }

 private:
  const uint64_t* words_ = nullptr;
  size_t size_ = 0;
  const Run* wide_ = nullptr;
  int32_t more_ = 0;
};

/// A list of runs that grows at its end. Every run comes back as it went in: what does not fit a
/// word is kept whole beside the words.
class PackedRuns {
 public:
  PackedRuns() = default;
  template <class Range>
  explicit PackedRuns(const Range& runs) {
    reserve(std::size(runs));
    for (const Run& run : runs) push_back(run);
  }

  size_t size() const { return words_.size(); }
  bool empty() const { return words_.empty(); }
  Run operator[](size_t i) const { return all()[i]; }
  RunView all() const { return {words_.data(), words_.size(), wide_.data()}; }
  RunView part(size_t first, size_t count) const { return all().part(first, count); }
  /// As they are kept: RunWord, of those that fit none a place in wide().
  const std::vector<uint64_t>& words() const { return words_; }
  const std::vector<Run>& wide() const { return wide_; }
  int64_t bytes() const {
    return static_cast<int64_t>(words_.size() * sizeof(uint64_t) + wide_.size() * sizeof(Run));
  }

  void reserve(size_t runs) { words_.reserve(runs); }
  void push_back(const Run& run) {
    if (RunWord::fits(run)) {
      words_.push_back(RunWord::pack(run));
    } else {
      words_.push_back(RunWord::kWide | wide_.size());
      wide_.push_back(run);
    }
  }

 private:
  std::vector<uint64_t> words_;
  std::vector<Run> wide_;  // what does not fit
};

}  // namespace verbatim
