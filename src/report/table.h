// Aligned text tables for terminals.
#pragma once

#include <string>
#include <vector>

namespace verbatim::report {

class Table {
 public:
  enum class Align { left, right };
  struct Column {
    std::string title;  // all titles empty: no header line
    Align align = Align::left;
  };

  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}

  /// Adds a line; missing cells are empty. A cell is UTF-8 without line breaks.
  void row(std::vector<std::string> cells);
  /// Adds a horizontal rule.
  void rule() { rows_.emplace_back(); }
  std::string str() const;
  /// The header and the lines in other forms; rules are left out.
  std::string csv() const;
  std::string markdown() const;

 private:
  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;  // an empty row is a rule
};

}  // namespace verbatim::report
