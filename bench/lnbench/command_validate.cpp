// `lnbench validate`: errors of the simulator against closed forms, SimGrid, real runs and published
// measurements.
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <iostream>

#include "core/check.h"
#include "json/json_reader.h"
#include "lnbench/terminal.h"
#include "run/published.h"
#include "run/shipped.h"
#include "simulate/closed_form_times.h"

namespace longnet {
namespace {

constexpr double kClosedForm = 1e-9, kUncontended = 1e-6, kContended = 0.02;
constexpr double kRealMedian = 0.05, kRealP95 = 0.15;

struct Section {
  JsonNode node = JsonNode::object();
  bool good = true;
};

Section closed_form_section() {
  Section s;
  double largest = 0;
  JsonNode cases = JsonNode::array();
  using enum Shown;
  using C = const ClosedFormTime&;
  Table<ClosedFormTime> table(
      {{"name", "", kText, 30, 0, [](C c) { return c.name; }},
       {"simulated_s", "simulated", kSeconds, 9, 0, [](C c) { return c.simulated_s; }},
       {"rel_error", "error", kNumber, 8, 0, [](C c) { return c.rel_error(); }},
       {"equation", "", kText, 10, 0, [](C c) { return c.equation; }}},
      table_style({}));
  table.note(concat("closed forms (allowed: ", kClosedForm, ")"));
  for (const ClosedFormTime& c : closed_form_times()) {
    largest = std::max(largest, c.rel_error());
    table.add(c);
    cases.push(JsonNode::object({{"name", c.name},
                                 {"equation", c.equation},
                                 {"expected_s", c.expected_s},
                                 {"simulated_s", c.simulated_s},
                                 {"rel_error", c.rel_error()}}));
  }
  s.node.set("max_rel_error", largest).set("cases", cases);
  s.good = largest <= kClosedForm;
  return s;
}

Section simgrid_section() {
  Section s;
  s.node.set("uncontended_max_rel_error", {}).set("contended_max_rel_error", {});
  const auto program = program_folder() / "simgrid_oracle";
  if (!std::filesystem::exists(program)) {
    s.node.set("reason", "simgrid_oracle was not built: install libsimgrid-dev and build again");
    std::cout << "# SimGrid: not compared, " << s.node.text("reason") << "\n";
    return s;
  }
  const auto file = std::filesystem::temp_directory_path() /
                    concat("lnbench_simgrid_", std::to_string(::getpid()), ".json");
  std::cerr << "comparing with SimGrid, about a minute ...\n";
  const int code = std::system(
      concat("'", program.string(), "' --json '", file.string(), "' >/dev/null 2>&1").c_str());
  check(std::filesystem::exists(file), "no comparison: ", program.string(), " ended with ", code);
  const JsonNode answer = parse_json(read_file_text(file.string(), ""), file.string());
  std::filesystem::remove(file);
  const JsonNode &alone = *answer.find("uncontended"), &shared = *answer.find("contended");
  s.node.set("uncontended_max_rel_error", alone.real("max_rel_error"));
  s.node.set("contended_max_rel_error", shared.real("max_rel_error"));
  s.node.set("uncontended_cases", alone.whole("cases"));
  s.node.set("contended_cases", shared.whole("cases")).set("reason", JsonNode());
  s.node.set("cases", *answer.find("cases"));
  s.good =
      alone.real("max_rel_error") <= kUncontended && shared.real("max_rel_error") <= kContended;
  std::cout << "# SimGrid 3: " << alone.whole("cases")
            << " cases without contention differ by at most " << alone.real("max_rel_error")
            << " (allowed " << kUncontended << "), " << shared.whole("cases") << " with it by "
            << shared.real("max_rel_error") << " (allowed " << kContended << ")\n";
  return s;
}

// Errors against real runs, from the file that scripts/validate_real.py writes for
// scripts/validate_real.sh.
Section real_section(const std::string& path) {
  Section s;
  if (path.empty()) {
    s.node.set("points", {}).set("median_rel_error", {}).set("p95_rel_error", {});
    s.node.set("reason", "no real runs were compared: scripts/validate_real.sh does it");
    std::cout << "# real runs: " << s.node.text("reason") << "\n";
    return s;
  }
  s.node = parse_json(read_file_text(path, "scripts/validate_real.sh writes it"), path);
  for (const char* key : {"points", "median_rel_error", "p95_rel_error", "cases"})
    if (!s.node.find(key))
      throw UsageError(path, ": has no \"", key,
                       "\"\n  hint: --real takes what validate_real.py compare writes");
  const double middle = s.node.real("median_rel_error"), p95 = s.node.real("p95_rel_error");
  s.good = middle <= kRealMedian && p95 <= kRealP95;
  std::cout << "# real runs: " << s.node.whole("points") << " points that no calibration has seen: "
            << "median error " << middle << " (allowed " << kRealMedian << "), 95th percentile "
            << p95 << " (allowed " << kRealP95 << ")\n";
  return s;
}

JsonNode published_case(const PublishedCase& c, const Prediction& p) {
  const auto number = [&](double v) { return p.reason.empty() ? JsonNode(v) : JsonNode(); };
  JsonNode n = JsonNode::object({{"id", c.id},
                                 {"source", c.source},
                                 {"family", c.family()},
                                 {"size", c.size()},
                                 {"ranks", c.ranks},
                                 {"published_s", c.published_s},
                                 {"predicted_s", number(p.seconds)},
                                 {"low_s", number(p.low_s)},
                                 {"high_s", number(p.high_s)},
                                 {"error", number(p.seconds / c.published_s - 1)},
                                 {"tolerance", c.tolerance},
                                 {"held_out", c.held_out}});
  return n.set("reason", p.reason.empty() ? JsonNode() : JsonNode(p.reason));
}

using Predicted = std::pair<const PublishedCase&, const Prediction&>;
std::vector<Column<Predicted>> predicted_columns() {
  using enum Shown;
  using P = const Predicted&;
  const auto known = [](P p, double v) {
    return p.second.reason.empty() ? JsonNode(v) : JsonNode();
  };
  return {
      {"case", "", kText, 44, 0, [](P p) { return p.first.id; }},
      {"published_s", "published", kSeconds, 9, 0, [](P p) { return p.first.published_s; }},
      {"predicted_s", "predicted", kSeconds, 9, 0, [=](P p) { return known(p, p.second.seconds); }},
      {"error", "", kPercent, 8, 0,
       [=](P p) { return known(p, p.second.seconds / p.first.published_s - 1); }},
      {"note", "", kNote, 0, 0, [](P p) { return p.second.reason; }}};
}

std::vector<Column<PublishedErrors>> error_columns() {
  using enum Shown;
  using E = const PublishedErrors&;
  return {{"group", "", kText, 44, 0, [](E e) { return e.name; }},
          {"cases", "", kNumber, 5, 0, [](E e) { return e.cases; }},
          {"median_error", "median", kPercent, 8, 0, [](E e) { return e.median; }},
          {"p95_error", "95th", kPercent, 8, 0, [](E e) { return e.p95; }},
          {"bias", "", kPercent, 8, 0, [](E e) { return e.bias; }},
          {"inside", "", kNumber, 6, 0, [](E e) { return e.inside; }}};
}

// Errors against published measurements, and whether they reach the goals.
Section published_section(const std::string& folder) {
  Section s;
  const std::vector<PublishedCase> cases = load_published(folder);
  std::vector<Prediction> predictions;
  JsonNode list = JsonNode::array(), groups = JsonNode::array();
  Table<Predicted> table(predicted_columns(), table_style({}));
  table.note("published measurements");
  for (const PublishedCase& c : cases) {
    predictions.push_back(predict(c));
    table.add({c, predictions.back()});
    list.push(published_case(c, predictions.back()));
  }
  Table<PublishedErrors> errors(error_columns(), table_style({}));
  const std::vector<PublishedErrors> groups_of_cases = errors_of(cases, predictions);
  for (const PublishedErrors& e : groups_of_cases) {
    errors.add(e);
    groups.push(JsonNode::object({{"name", e.name},
                                  {"cases", e.cases},
                                  {"median_rel_error", e.median},
                                  {"p95_rel_error", e.p95},
                                  {"bias", e.bias},
                                  {"inside", e.inside}}));
  }
  const PublishedOrder order = order_of(cases, predictions);
  std::cout << "# pairs of algorithms more than 5 % apart: " << order.right << " of " << order.pairs
            << " in the right order\n";
  s.good = reach_goals(groups_of_cases, order);
  s.node.set("cases", list).set("groups", groups);
  s.node.set("pairs", order.pairs).set("pairs_in_order", order.right);
  return s;
}

}  // namespace

int run_validate(const Options& options) {
  const Section closed = closed_form_section(), simgrid = simgrid_section(),
                real = real_section(options.real);
  JsonNode root = JsonNode::object({{"schema_version", 1},
                                    {"closed_form", closed.node},
                                    {"simgrid", simgrid.node},
                                    {"real", real.node}});
  bool good = closed.good && simgrid.good && real.good;
  if (!options.published.empty()) {
    const Section published = published_section(options.published);
    root.set("published", published.node);
    good &= published.good;
  }
  if (!options.json.empty()) write_file(options.json, dump_json(root, 1) + "\n");
  return good ? kOk : kFailed;
}

}  // namespace longnet
