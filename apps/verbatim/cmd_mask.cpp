#include <fmt/format.h>

#include <memory>

#include "core/file.h"
#include "options.h"
#include "report/format.h"
#include "report/mask_picture.h"
#include "result.h"

namespace verbatim::app {
namespace {

struct MaskCommand {
  ProblemOptions problem;
  MaskOptions mask;
  OutputOptions output;
  std::string svg, to, to_file;
  int64_t tile_q = 0, tile_kv = 0, batch_entry = 0, head = 0;
  int columns = 64;

  int run() const;
  std::string convert(const Mask& made) const;
};

std::string text_of_dense(const HeadMask& mask) {
  const std::vector<uint8_t> dense = to_dense(mask);
  std::string text;
  for (int64_t q = 0; q < mask.q_len; ++q) {
    for (int64_t k = 0; k < mask.kv_len; ++k) {
      text += dense[q * mask.kv_len + k] ? '1' : '0';
    }
    text += '\n';
  }
  return text;
}

std::string MaskCommand::convert(const Mask& made) const {
  require_one_of(to, "--to", {"json", "mask_mod", "cu_seqlens", "columns", "dense"});
  const HeadMask& first = made.head(batch_entry, head);
  const auto impossible = [&](const char* why) {
    fail("this mask has no such form",
         {"--to", fmt::format("{} of {}", to, made.name()), why, "--to json or --to mask_mod"});
  };
  if (to == "json") return to_json(made) + "\n";
  if (to == "mask_mod") return to_mask_mod(made);
  if (to == "cu_seqlens") {
    const auto lengths = to_cu_seqlens(first);
    if (!lengths) impossible("a chain of full or causal documents");
    return Json{{"cu_seqlens_q", lengths->q},
                {"cu_seqlens_k", lengths->k},
                {"causal", lengths->causal}}
               .dump() +
           "\n";
  }
  if (to == "columns") {
    const auto columns = to_column_intervals(first);
    if (!columns) impossible("at most two hidden row intervals in every column");
    return Json{{"lower_start", columns->lower_start},
                {"lower_end", columns->lower_end},
                {"upper_start", columns->upper_start},
                {"upper_end", columns->upper_end}}
               .dump() +
           "\n";
  }
  return text_of_dense(first);
}

int MaskCommand::run() const {
  const Problem sizes = make_problem(problem, mask);
  const Mask made = mask.make(sizes);
  require_not_negative(tile_q, "--tile-q");
  require_not_negative(tile_kv, "--tile-kv");
  if (batch_entry < 0 || batch_entry >= sizes.batch || head < 0 || head >= sizes.kv_heads) {
    fail("the problem has no such head",
         {"--show-batch, --show-head", fmt::format("{}, {}", batch_entry, head),
          fmt::format("below {}, {}", sizes.batch, sizes.kv_heads), "0, 0"});
  }
  if (!to.empty()) {
    const std::string text = convert(made);
    if (to_file.empty()) {
      fmt::print("{}", text);
    } else {
      write_file(to_file, text);
    }
    return 0;
  }
  const HeadMask& shown = made.head(batch_entry, head);
  const TileShape usual = default_tile(sizes, Pass::backward);
  const TileShape tile{tile_q ? tile_q : usual.q, tile_kv ? tile_kv : usual.kv};
  const report::TileClasses classes = report::tile_classes(TileMap(shown, tile));
  const double positions = static_cast<double>(shown.q_len) * static_cast<double>(shown.kv_len);

  Json result = new_result("mask");
  result["problem"] = describe(sizes);
  result["mask"] = describe(made, sizes, tile);
  save(output, result);
  if (!svg.empty()) {
    write_file(svg, report::mask_picture(shown, tile).document(made.name() + " mask"));
  }

  fmt::print("{}\n\n", headline(sizes, made));
  if (columns > 0) fmt::print("{}\n", report::mask_ascii(shown, columns));
  report::Table table({{""}, {"", report::Table::Align::right}, {""}});
  const auto area = shown.area();
  table.row({"area", report::count(area), "visible positions of this head"});
  table.row({"density", report::percent(positions > 0 ? static_cast<double>(area) / positions : 0),
             "of all positions"});
  table.row({"all heads", report::count(made.area(sizes.batch, sizes.q_heads, sizes.kv_heads)),
             fmt::format("batch {}, {} query heads", sizes.batch, sizes.q_heads)});
  table.row({"full tiles", report::count(classes.full),
             fmt::format("of {} queries x {} keys", tile.q, tile.kv)});
  table.row({"partial tiles", report::count(classes.partial), "cut by the mask's edge"});
  table.row({"empty tiles", report::count(classes.empty), "skipped"});
  table.row({"slices", report::count(std::ssize(shown.slices)),
             fmt::format("{} distinct head masks", made.variants().size())});
  fmt::print("{}", table.str());
  return 0;
}

}  // namespace

void add_mask(Command root, Action& action) {
  auto command = std::make_shared<MaskCommand>();
  const Command sub =
      root.add_subcommand("mask", "Show a mask: area, density, tile classes, picture");
  sub.footer(
      "Example: verbatim mask --mask causal_document --doc-lengths 300,500,224\n"
      "A tile is full (nothing to mask), partial (cut by the mask's edge) or empty (skipped).\n"
      "--to prints other libraries' forms: mask_mod is a Python function for FlexAttention,\n"
      "cu_seqlens the cumulative lengths of variable-length kernels, columns FlashMask's "
      "intervals,\n"
      "dense rows of 0 and 1, json what --mask @file.json reads.");
  command->problem.add_to(sub);
  command->mask.add_to(sub);
  const char* group = "Picture";
  sub.add_option("--tile-q", command->tile_q, "Queries per tile (default: by head dim)")
      .group(group)
      .type_name("N");
  sub.add_option("--tile-kv", command->tile_kv, "Keys per tile (default: by head dim)")
      .group(group)
      .type_name("N");
  sub.add_option("--show-batch", command->batch_entry, "Batch entry to show")
      .group(group)
      .type_name("N")
      .capture_default_str();
  sub.add_option("--show-head", command->head, "KV head to show")
      .group(group)
      .type_name("N")
      .capture_default_str();
  sub.add_option("--columns", command->columns, "Width of the terminal picture; 0: none")
      .group(group)
      .type_name("N")
      .capture_default_str()
      .range(0, 400);
  sub.add_option("--svg", command->svg, "Write the picture")
      .group(group)
      .type_name("FILE")
      .writes_file();
  sub.add_option("--to", command->to,
                 "Print another form instead: json, mask_mod, cu_seqlens, columns, dense")
      .group("Output")
      .type_name("FORM");
  sub.add_option("--to-file", command->to_file, "Write that form instead of printing it")
      .group("Output")
      .type_name("FILE")
      .needs(sub.option("--to"))
      .writes_file();
  command->output.add_to(sub, true);
  for (const char* other : {"--svg", "--json", "--report"})
    sub.option("--to").excludes(sub.option(other));
  sub.callback([command, &action] { action = [command] { return command->run(); }; });
}

}  // namespace verbatim::app
