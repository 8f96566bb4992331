// `lnbench validate`: errors of the simulator against closed forms, SimGrid, real runs and
// published measurements.
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <iostream>

#include "core/check.h"
#include "core/work_ahead.h"
#include "io/record_table.h"
#include "json/json_reader.h"
#include "json/text.h"
#include "lnbench/terminal.h"
#include "run/shipped.h"
#include "run/validation.h"

namespace longnet {
namespace {

using Section = ValidationSection;

Section closed_form_section() {
  using enum Shown;
  using C = const ClosedFormTime&;
  Table<ClosedFormTime> table(
      {{"name", "", kText, 30, 0, [](C c) { return c.name; }},
       {"simulated_s", "simulated", kSeconds, 9, 0, [](C c) { return c.simulated_s; }},
       {"rel_error", "error", kNumber, 8, 0, [](C c) { return c.rel_error(); }},
       {"equation", "", kText, 10, 0, [](C c) { return c.equation; }}},
      table_style({}));
  table.note(concat("closed forms (allowed: ", kClosedFormError, ")"));
  const std::vector<ClosedFormTime> cases = closed_form_times();
  for (const ClosedFormTime& c : cases) table.add(c);
  return judge_closed_forms(cases);
}

Section simgrid_section() {
  const auto program = program_folder() / "simgrid_oracle";
  if (!std::filesystem::exists(program)) {
    Section s;
    s.node.set("uncontended_max_rel_error", {}).set("contended_max_rel_error", {});
    s.node.set("reason", "simgrid_oracle was not built: install libsimgrid-dev and build again");
    std::cout << "# SimGrid: not compared, " << s.node.text("reason") << "\n";
    return s;
  }
  const auto file = std::filesystem::temp_directory_path() /
                    concat("lnbench_simgrid_", std::to_string(::getpid()), ".json");
  std::cerr << "comparing with SimGrid, about a minute ...\n";
  const int code = std::system(concat(shell_word(program.string()), " --json ",
                                      shell_word(file.string()), " >/dev/null 2>&1")
                                   .c_str());
  check(std::filesystem::exists(file), "no comparison: ", program.string(), " ended with ", code);
  const Section s = judge_simgrid(parse_json(read_file_text(file.string(), ""), file.string()));
  std::filesystem::remove(file);
  std::cout << "# SimGrid 3: " << s.node.whole("uncontended_cases")
            << " cases without contention differ by at most "
            << s.node.real("uncontended_max_rel_error") << " (allowed " << kUncontendedError
            << "),\n#   " << s.node.whole("contended_cases") << " with it by "
            << s.node.real("contended_max_rel_error") << " (allowed " << kContendedError << ")\n";
  return s;
}

// Errors against real runs, from the file that scripts/validate_real.py writes for
// scripts/validate_real.sh.
Section real_section(const std::string& path) {
  if (path.empty()) {
    Section s;
    s.node.set("points", {}).set("median_rel_error", {}).set("p95_rel_error", {});
    s.node.set("reason", "no real runs were compared: scripts/validate_real.sh does it");
    std::cout << "# real runs: " << s.node.text("reason") << "\n";
    return s;
  }
  const Section s =
      judge_real(parse_json(read_file_text(path, "scripts/validate_real.sh writes it"), path));
  std::cout << "# real runs: " << s.node.whole("points") << " points that no calibration has seen: "
            << "median error " << s.node.real("median_rel_error") << " (allowed "
            << s.node.real("goal_median_rel_error") << "), 95th percentile "
            << s.node.real("p95_rel_error") << " (allowed " << s.node.real("goal_p95_rel_error")
            << ")\n";
  return s;
}

// A column of the rows of a section's JSON.
Column<JsonNode> column(const char* key, const char* title, Shown shown, int width) {
  return {{key, title, shown, width, 0}, [key](const JsonNode& row) { return *row.find(key); }};
}

// "blind outside"
std::string marks_of(const JsonNode& row) {
  std::vector<std::string> marks;
  if (row.flag("blind")) marks.emplace_back("blind");
  if (row.flag(kBeyondTable)) marks.emplace_back("beyond");
  if (row.text("reason").empty() && !row.flag("inside")) marks.emplace_back("outside");
  return join(marks, " ");
}

JsonNode share_inside(const JsonNode& group) {
  return double(group.whole("inside")) / double(group.whole("cases"));
}

// "inside their interval: 102 of 115 development cases (89 %), ..."
std::string inside_text(std::span<const JsonNode> groups) {
  std::vector<std::string> said;
  for (const JsonNode& g : groups)
    if (const std::string& name = g.text("name"); name == kDevelopment || name == kBlind)
      said.push_back(concat(g.whole("inside"), " of ", g.whole("cases"), " ", name.substr(4), " (",
                            human(share_inside(g), Shown::kPercent), ")"));
  return "inside their interval: " + join(said, ", ");
}

// Errors against published measurements, and whether they reach the goals.
Section published_section(const std::vector<PublishedCase>& cases) {
  using enum Shown;
  std::vector<Prediction> predictions;
  TableStyle style = table_style({});
  style.width = 120;
  Table<JsonNode> table({column("id", "case", kText, 40),
                         column("published_s", "published", kSeconds, 9),
                         column("tolerance", "", kPercent, 9),
                         column("predicted_s", "predicted", kSeconds, 9),
                         column("low_s", "low", kSeconds, 7),
                         column("high_s", "high", kSeconds, 7),
                         column("error", "", kSignedPercent, 8),
                         {{"marks", "", kText, 20, 0}, marks_of},
                         column("reason", "", kNote, 0)},
                        style);
  table.note(
      "published measurements, and what the simulator predicts: low to high is its interval");
  table.note(
      "tolerance: the source's own. blind: found after the model was made. beyond: beyond the "
      "kernel table. outside: published is not between low and high");
  WorkAhead<Prediction> predicted(cases.size(), simulation_threads(cases.at(0).how),
                                  [&](size_t i) { return predict(cases[i]); });
  for (const PublishedCase& c : cases) {
    predictions.push_back(predicted.next());
    table.add(to_json(c, predictions.back()));
  }
  Table<JsonNode> errors({column("name", "group", kText, 44),
                          column("cases", "", kNumber, 5),
                          column("median_rel_error", "median", kPercent, 8),
                          column("p95_rel_error", "95th", kPercent, 8),
                          column("bias", "", kSignedPercent, 8),
                          {{"inside", "", kPercent, 7, 0}, share_inside}},
                         style);
  const Section s = judge_published(cases, predictions);
  for (const JsonNode& group : s.node.list("groups")) errors.add(group);
  errors.note(inside_text(s.node.list("groups")));
  Table<JsonNode> goals(
      {column("name", "goal", kText, 58),
       column("bound", "", kPercent, 8),
       column("found", "", kPercent, 8),
       {{"reached", "", kText, 8, 0},
        [](const JsonNode& row) { return row.find("reached")->boolean ? "reached" : "missed"; }}},
      table_style({}));
  goals.note("goals, of the cases that are not blind");
  for (const JsonNode& goal : s.node.list("goals")) goals.add(goal);
  return s;
}

}  // namespace

int run_validate(const Options& options) {
  check_writable(options.json, "--json");
  std::vector<PublishedCase> published;
  if (!options.published.empty()) published = load_published(options.published);
  const Section closed = closed_form_section(), real = real_section(options.real),
                simgrid = simgrid_section();  // when all is read: it takes a minute
  JsonNode root = JsonNode::object({{"schema_version", 1},
                                    {"closed_form", closed.node},
                                    {"simgrid", simgrid.node},
                                    {"real", real.node}});
  bool good = closed.good && simgrid.good && real.good;
  if (!published.empty()) {
    const Section compared = published_section(published);
    root.set("published", compared.node);
    good &= compared.good;
  }
  if (!options.json.empty()) write_file(options.json, dump_json(root, 1) + "\n");
  return good ? kOk : kFailed;
}

}  // namespace longnet
