// The audit of one problem: what must not matter, changed one thing at a time.
#pragma once

#include <string>
#include <vector>

#include "tensors.h"
#include "verbatim/verbatim.h"
#include "world.h"

namespace verbatim::app {

/// One line of the audit.
struct Row {
  std::string check, detail;
  int runs = 0;
  bool identical = true;
  bool promised = true;
  std::string hash{};  // of the first run that differs, else of the last
};

class Audit {
 public:
  Audit(Problem problem, Mask mask, AttentionOptions options, Passes passes, int repeats)
      : problem_(problem),
        mask_(std::move(mask)),
        options_(std::move(options)),
        passes_(passes),
        repeats_(repeats),
        attention_(problem_, mask_, options_),
        tensors_(problem_, problem_.seed) {
    run(attention_, tensors_, {});
    expected_ = hash_outputs(tensors_, passes_);
  }

  void repeat();
  void threads();
  void load();
  void workers();
  void batch();
  void heads();
  void documents();
  void neighbours();
  void padding();
  /// Dealt to ranks: as asked for, else two and four, with every strategy that fits.
  void world(const WorldOptions& asked, dist::Processes* processes);
  void against(const std::string& path, const Hashes& saved);

  const std::vector<Row>& rows() const { return rows_; }
  const Attention& attention() const { return attention_; }
  const Hashes& expected() const { return expected_; }

 private:
  bool invariant() const { return options_.plan.level == Level::invariant; }
  /// Dropout is keyed by the number of a sequence and the head: a part at another place drops other
  /// elements. Positions count from the start of a document, so packing alone changes nothing.
  bool movable() const { return problem_.dropout == 0; }

  void run(const Attention& attention, Tensors& tensors, const RunOptions& options) const {
    tensors.poison_outputs(Passes::both);
    attention.forward(tensors.forward(), options);
    if (passes_ != Passes::forward) attention.backward(tensors.backward(), options);
  }
  /// The first entry's documents as parts of the problem; empty where the mask has none.
  std::vector<Part> document_parts() const;
  /// Whether a document sees no other and is seen by none.
  bool closed(const Part& document) const;
  void beside_documents();
  void padded(Side side, int64_t rows, int64_t keys);
  /// Runs the whole problem once more and notes the result in `row`.
  void again(const Attention& attention, const RunOptions& options, Row& row) {
    run(attention, tensors_, options);
    note(hash_outputs(tensors_, passes_), expected_, row);
  }
  static void note(const Hashes& got, const Hashes& expected, Row& row) {
    ++row.runs;
    if (got != expected && row.identical) {
      row.identical = false;
      row.hash = digest(got);
    }
    if (row.identical) row.hash = digest(got);
  }
  /// Runs `part` at `place` of another problem, whose own tensors surround it, and compares what
  /// both have in common.
  void elsewhere(const Part& part, const Problem& other, const Mask& mask, const Part& place,
                 Tensors tensors, Row& row) const {
    copy_inputs(tensors_, part, tensors, place);
    run(Attention(other, mask, options_), tensors, {});
    note(hash_outputs(tensors, place, passes_), hash_outputs(tensors_, part, passes_), row);
  }

  Problem problem_;
  Mask mask_;
  AttentionOptions options_;
  Passes passes_;
  int repeats_;
  Attention attention_;
  Tensors tensors_;
  Hashes expected_;
  std::vector<Row> rows_;
};

}  // namespace verbatim::app
