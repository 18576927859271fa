#include "report/table.h"

#include <algorithm>

namespace verbatim::report {
namespace {

constexpr const char* kGap = "  ";
constexpr const char* kDash = "─";

/// Code points, which is the width of everything this library prints.
size_t width(const std::string& text) {
  return static_cast<size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; }));
}

}  // namespace

void Table::row(std::vector<std::string> cells) {
  cells.resize(columns_.size());
  rows_.push_back(std::move(cells));
}

std::string Table::str() const {
  std::vector<size_t> widths;
  for (size_t c = 0; c < columns_.size(); ++c) {
    size_t widest = width(columns_[c].title);
    for (const auto& row : rows_) {
      if (!row.empty()) widest = std::max(widest, width(row[c]));
    }
    widths.push_back(widest);
  }

  std::string text;
  const auto end_line = [&] {
    text.erase(text.find_last_not_of(' ') + 1);
    text += '\n';
  };
  const auto add_rule = [&] {
    size_t total = 0;
    for (const size_t w : widths) total += w + 2;
    for (size_t i = 2; i < total; ++i) text += kDash;
    text += '\n';
  };
  const auto add_row = [&](const auto& cell_of) {
    for (size_t c = 0; c < columns_.size(); ++c) {
      const std::string& cell = cell_of(c);
      const std::string padding(widths[c] - width(cell), ' ');
      if (c) text += kGap;
      text += columns_[c].align == Align::right ? padding + cell : cell + padding;
    }
    end_line();
  };

  if (std::any_of(columns_.begin(), columns_.end(), [](auto& c) { return !c.title.empty(); })) {
    add_row([&](size_t c) -> const std::string& { return columns_[c].title; });
    add_rule();
  }
  for (const auto& row : rows_) {
    if (row.empty()) {
      add_rule();
    } else {
      add_row([&](size_t c) -> const std::string& { return row[c]; });
    }
  }
  return text;
}

std::string Table::csv() const {
  std::string text;
  const auto add = [&](const std::string& cell, bool last) {
    const bool plain = cell.find_first_of("\",\n") == std::string::npos;
    std::string quoted;
    for (const char c : cell) quoted += c == '"' ? std::string(2, c) : std::string(1, c);
    text += (plain ? cell : '"' + quoted + '"') + (last ? "\n" : ",");
  };
  const size_t last = columns_.size() - 1;
  for (size_t c = 0; c <= last; ++c) add(columns_[c].title, c == last);
  for (const auto& row : rows_) {
    for (size_t c = 0; c < row.size(); ++c) add(row[c], c == last);
  }
  return text;
}

std::string Table::markdown() const {
  std::string text = "|", dashes = "|";
  for (const Column& column : columns_) {
    text += " " + column.title + " |";
    dashes += column.align == Align::right ? "---:|" : "---|";
  }
  text += "\n" + dashes + "\n";
  for (const auto& row : rows_) {
    if (row.empty()) continue;
    text += "|";
    for (const std::string& cell : row) {
      text += " ";
      for (const char c : cell) text += c == '|' ? std::string("\\|") : std::string(1, c);
      text += " |";
    }
    text += "\n";
  }
  return text;
}

}  // namespace verbatim::report
