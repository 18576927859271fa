// The parts of the checker: one walk over the statements that resolves names, infers shapes and
// layouts, and reports every fault with the edit that mends it.
#pragma once

#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tl/kernel.h"

namespace verbatim::tl {

std::vector<std::string> names_of(const Shape& shape);
Shape shape_of(const std::vector<std::string>& names);

class Examiner {
 public:
  Examiner(std::string_view text, const Program& program, const CheckOptions& options);
  Examined run();

 private:
  enum class Layout { product, factor };  // of an MMA: MMA_C and MMA_A

  /// What is known of a variable at the current statement.
  struct State {
    Layout layout = Layout::product;
    bool allocated = false, written = false;
    bool masked = false;           // scores, -inf where they are hidden
    bool arriving = false;         // a copy in the background has not been waited for
    bool arrives_in_loop = false;  // ... and was started there
    bool loaded = false;           // by a Copy from global memory
    bool awaited = false;          // ... that has its Wait
  };
  using Key = std::pair<std::string, Memory>;

  // examine.cpp: parameters, statements in turn, moves between memories.
  void read_parameters();
  void read_parameter(const Param& param);
  int64_t parameter(const char* name, int64_t least, int64_t most);
  std::string word_parameter(const char* name, const std::vector<std::string>& known);
  void walk(const std::vector<Statement>& statements, std::vector<Step>& steps);
  void enter(const Loop& loop, const Statement& statement);
  void check_bounds(const Loop& loop);
  void allocate(const Allocate& a);
  void allocate_global(const Allocate& a);
  void move(const Move& m, std::vector<Step>& steps);
  void load(const Move& m, const Tensor& tensor, std::vector<Step>& steps);
  void store(const Move& m, const Tensor& tensor, std::vector<Step>& steps);
  void reshape(const Reshape& r, std::vector<Step>& steps);
  void wait(const Wait& w, std::vector<Step>& steps);

  // blocks.cpp: which block of its tensor a move takes, and who names it.
  void read_index();
  void check_index(const Param& param);
  void check_block(const Move& m, const Tensor& tensor);
  void check_coordinate(const Coordinate& c, const Tensor& tensor);
  std::string block_of(const Tensor& tensor) const;

  // operations.cpp: Compute.
  void compute(const Compute& c, std::vector<Step>& steps);
  void gemm(const Compute& c, std::vector<Step>& steps);
  bool check_factor(const Operand& operand, int v, bool first);
  void check_transposition(const Compute& c, int a, int b);
  void fill(const Compute& c, std::vector<Step>& steps);
  void elementwise(const Compute& c, Operation operation, std::vector<Step>& steps);
  void mask(const Compute& c, std::vector<Step>& steps);
  void check_mask_of_index(const Compute& c);
  void softmax(const Compute& c, std::vector<Step>& steps);
  void logsumexp(const Compute& c, std::vector<Step>& steps);
  int started(const Operand& operand, const std::vector<std::string>& shape, const char* start);
  int result_of(const Compute& c, int in_place, const std::vector<std::string>& shape);
  bool has_operands(const Compute& c, size_t operands, size_t least_with, size_t most_with,
                    const char* form);

  // limits.cpp: what the target can hold and do.
  void check_allocations();
  void check_outputs();
  void check_target();
  void check_product(const Step& step);
  void collect_rescaled();

  // variables.cpp: variables by name and memory.
  int find(const std::string& name, Memory memory) const;
  int variable(const std::string& name, Memory memory, Span at);
  /// The variable that an operand means, ready to be read; -1, reported, when it is not. Matrix
  /// instructions read shared memory, and registers; everything else reads registers.
  int read(const Operand& operand, bool by_mma = false);
  int read(const std::string& name, Span at, Memory memory);
  bool arrived(int v, Span at);
  void report_undefined(const std::string& name, Span at, bool by_mma);
  /// `shape` is a copy: another variable's moves when this one is new.
  int write(const std::string& name, Memory memory, Span at, std::vector<std::string> shape);
  bool fits(int v, const std::vector<std::string>& shape, Span at);
  bool equal(const std::vector<std::string>& a, const std::vector<std::string>& b) const;
  bool equal(const std::string& a, const std::string& b) const;
  int64_t extent(const std::string& name) const;
  static std::string shown(const std::vector<std::string>& shape);

  // Reports.
  void report(std::string code, Span at, std::string reason, std::string right,
              std::optional<Edit> edit = {});
  Edit line_before(const Statement& statement, const std::string& line) const;
  Edit header_line(const std::string& line) const;
  Edit replaced(const Statement& statement, const std::string& line) const;
  /// With its line, where nothing else is on it.
  Edit removed(const Statement& statement) const;

  std::string_view text_;
  const Program& program_;
  CheckOptions options_;
  Examined result_;
  Kernel& kernel_;
  const Target* target_ = nullptr;
  std::map<std::string, Param> params_;
  std::map<std::string, int64_t> numbers_;  // parameters that are numbers
  std::map<Key, int> by_name_;
  std::vector<State> states_;        // of kernel_.variables
  std::set<std::string> globals_;    // tensors that are allocated
  std::set<std::string> unknown_;    // names whose fault is reported: no more about them
  std::set<std::string> outputs_;    // tensors that are written
  const Statement* at_ = nullptr;    // the current statement
  const Statement* loop_ = nullptr;  // the loop around it
  bool loop_done_ = false;
};

}  // namespace verbatim::tl
