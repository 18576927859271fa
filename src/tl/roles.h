// A forward whose warps have roles: which buffers there are and who fills them, what comes before
// and behind the Reshape, and what is not translated.
#pragma once

#include <algorithm>
#include <span>
#include <string>

#include "tl/statements.h"

namespace verbatim::tl {

/// A visit is cut behind its Reshape. What comes before, its scores, takes turns with those of
/// other warpgroups; the products of what the Reshape made run beside the scores of the next visit.
class Roles : public Statements {
 protected:
  explicit Roles(const Examined& found) : Statements(found), cut_(find_cut()) {}

  using Part = std::span<const Step>;
  static bool is(const Step& step, Operation operation) {
    return step.kind == Step::Kind::compute && step.operation == operation;
  }
  bool is_late(const Step& step) const {
    return is(step, Operation::gemm) && var(step.a).memory == Memory::registers;
  }
  /// The product of the scores.
  const Step& scores() const {
    return *std::ranges::find_if(k_.visit, [](const Step& s) { return is(s, Operation::gemm); });
  }
  Part early() const { return Part(k_.visit).first(cut_); }
  Part late() const { return Part(k_.visit).subspan(cut_); }
  bool is_read_late(int tile) const;
  /// Whether a tile is turned in shared memory, for products behind the Reshape to read.
  bool is_turned(int tile) const { return turned_bytes(k_, var(tile)) > 0; }
  std::vector<int> turned() const;

  /// Buffers of a tile in shared memory: of one that a chain keeps two, if there is room, so that
  /// the next chain's arrives during this one.
  const char* slots(const Variable& v) const;
  /// Of its ring, which use a tile is: the chain's, this visit's, or that of the visit before.
  std::string use_of(int v) const;
  /// The tile of that use as products read it, and the barriers of its ring.
  std::string tile_of(int v) const {
    return fmt::format("use(shared.{}_{}, {})", is_turned(v) ? "turned" : "s", var(v).name,
                       use_of(v));
  }
  std::string slots_of(int v) const {
    return fmt::format("shared.{}_{}", is_turned(v) ? "turning" : "of", var(v).name);
  }

  /// The functions of the warps that copy tiles of one side of the Reshape, and that turn them.
  void copy_tiles(bool behind);
  void turn_tiles();

  void refuse_other_loops() const;

 private:
  /// The number of steps up to the first Reshape, with it.
  size_t find_cut() const;
  void copy(const Step& load);
  void refuse_other_tiles() const;
  void refuse_other_scores() const;

  size_t cut_;
};

}  // namespace verbatim::tl
