#include "run/published.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <set>

#include "core/check.h"
#include "io/config_reader.h"
#include "io/record_table.h"
#include "json/json_reader.h"
#include "json/text.h"
#include "measure/statistics.h"
#include "run/shipped.h"
#include "run/sweep.h"
#include "schedule/registry.h"
#include "simulate/collective_times.h"

namespace longnet {
namespace {

namespace fs = std::filesystem;
constexpr double kApart = 1.05;  // ratio of times from which a pair must be in order
constexpr double kLarge = 16e6;  // bytes of a message

const std::vector<std::string> kUnits{"s", "ms", "us"};

// Both directions at once is the one that messages_of() has no programs for.
std::vector<std::string> predicted_operations() {
  std::vector<std::string> names = enum_names<CommOperation>();
  std::erase(names, to_string(CommOperation::kExchange));
  std::ranges::sort(names);
  return names;
}

// Keys that must be there, and hold more than an empty text.
void require(JsonReader& r, std::initializer_list<std::pair<const char*, const char*>> hints) {
  for (const auto& [key, hint] : hints) {
    const JsonNode* n = r.take(key);
    if (!n)
      r.problems().add(r.node(), r.path_of(key), "is missing", hint);
    else if (n->kind == JsonNode::Kind::kString && n->string.empty())
      r.problems().add(*n, r.path_of(key), "is empty", hint);
  }
}

// The cluster of a file: of a folder `clusters` beside that of the cases, or a shipped one.
SimulatePoint read_cluster(JsonReader& r, const fs::path& file) {
  std::string name, what_if;
  r.field("cluster", name);
  r.field("what_if", what_if);
  r.problems().throw_if_any();
  const fs::path beside = file.parent_path().parent_path() / "clusters" / (name + ".json");
  SimulatePoint how;
  how.communication_alone = false;
  try {
    how.cluster =
        load_cluster(fs::exists(beside) ? beside.string() : find_shipped("clusters", name));
    how.what_if = parse_what_if(what_if);
    how.cluster = apply(how.cluster, how.what_if);
  } catch (const UsageError& e) {
    throw UsageError(file.string(), ": cluster and what_if: ", e.what());
  }
  how.cluster.device.memory_bytes.value = 1e18;  // the published run had room in it
  return how;
}

// `common`: keys of all cases of the file, which a case may replace.
void read_setup(JsonReader& r, const JsonNode* common, PublishedCase& out) {
  JsonNode& all = out.setup;
  for (const JsonNode* part : {common, r.take("setup")})
    for (size_t i = 0; part && i < part->keys.size(); ++i) all.set(part->keys[i], part->items[i]);
  FieldReader setup(&all, r.path_of("setup"), r.problems());
  std::string operation;
  setup.field("operation", operation, predicted_operations());
  if (!operation.empty()) out.operation = parse_enum<CommOperation>(operation);
  setup.field("bytes", out.bytes, {.min = 1});
  out.params = standard_params();
  out.params.problem.dtype = DType::kBFloat16;
  static const KnownNames known = known_names();
  for (const Axis& axis : axes()) setup.value(axis, known, out.params);
  setup.unknown_keys();
  AttentionProblem& p = out.params.problem;
  if (p.num_kv_heads == 0) p.num_kv_heads = p.num_heads;
  out.params.pattern = dense_pattern(p.seq_len);
  const auto add = [&](std::string_view key, const std::string& what, const std::string& hint) {
    r.problems().add(r.node(), setup.path_of(key), what, hint);
  };
  const JsonNode* named = all.find("algorithm");
  if (!out.operation && !named)
    add("algorithm", "is missing", "name an algorithm of exact attention, or an operation");
  for (const AlgorithmInfo& a : algorithms())
    if (named && a.name == all.text("algorithm") && a.pattern != PatternKind::kDense)
      add("algorithm", concat("is ", a.name, ", whose branches a setup cannot state"),
          "name an algorithm of exact attention");
  if (p.num_heads % p.num_kv_heads != 0)
    add("kv_heads", concat("must divide the ", p.num_heads, " heads, is ", p.num_kv_heads),
        "use a divisor, or leave the key out for as many as heads");
  if (out.params.ranks > out.how.cluster.num_gpus())
    add("ranks",
        concat("are ", out.params.ranks, ", the cluster has ", out.how.cluster.num_gpus(), " GPUs"),
        "use fewer, or add nodes by what_if");
  if (out.operation && out.bytes < 1) add("bytes", "is missing", "as nccl-tests counts them");
  if (16.0 * double(p.seq_len) * double(p.batch) * double(p.num_heads) * double(p.head_dim) >=
      0x1p63)
    add("seq_len", "the bytes of Q, K, V and O pass 2^63", "use shorter sequences");
}

void read_case(JsonReader& r, const JsonNode* common, PublishedCase& out) {
  double value = 0;
  std::string unit = "s";
  require(r, {{"id", "a name of the case's own"}, {"unit", "one of s, ms, us"}});
  r.field("id", out.id);
  read_setup(r, common, out);
  r.field("value", value, {.min = 0, .min_excluded = true});
  r.field("unit", unit, kUnits);
  out.published_s = value * (unit == "us" ? 1e-6 : unit == "ms" ? 1e-3 : 1);
  if (r.problems().empty() && value == 0)
    r.problems().add(r.node(), r.path_of("value"), "is missing", "the published time, in its unit");
  r.unknown_keys();
}

void read_file(const fs::path& file, std::vector<PublishedCase>& out) {
  const JsonNode root = parse_json(read_file_text(file.string(), ""), file.string());
  Problems problems;
  JsonReader r(&root, "", problems);
  PublishedCase like;
  double version = 1;
  r.take("$schema");
  require(r, {{"schema_version", "add \"schema_version\": 1"},
              {"source", "who published it"},
              {"url", "where"},
              {"title", "which table or log, of which revision"},
              {"verified", "which figures were read again at the source"},
              {"tolerance", "{ \"value\": 0.05, \"source\": \"...\" }"},
              {"cluster", "a file of configs/clusters, without .json"},
              {"cases", "a list of setups and their times"}});
  r.field("schema_version", version, {.min = 1, .max = 1});
  r.field("source", like.source);
  like.file = file.filename().string();
  if (const JsonNode* node = r.take("tolerance")) {
    JsonReader tolerance(node, "tolerance", problems);
    require(tolerance, {{"value", "a share: 0.05 is 5 %"}, {"source", "where it is from"}});
    tolerance.field("value", like.tolerance, {.min = 0});
    tolerance.unknown_keys();
  }
  like.how = read_cluster(r, file);
  const JsonNode *informs = r.take("informs"), *common = r.take("setup"), *cases = r.take("cases");
  r.field("blind", like.blind);
  like.held_out = !informs || informs->items.empty();
  if (like.blind && !like.held_out)
    problems.add(*informs, "informs", "names what blind cases have changed",
                 "leave \"blind\" out: its cases had a part in the model");
  if (cases)
    for (size_t i = 0; const JsonNode* node : as_list(*cases, "cases", problems)) {
      JsonReader one(node, concat("cases[", i++, "]"), problems);
      read_case(one, common, out.emplace_back(like));
    }
  r.unknown_keys();
  problems.throw_if_any();
}

// Every rank sends to the next one, or a piece to every other one: one program stands for all.
ProgramSet messages_of(const PublishedCase& c) {
  LooseProgram program;
  const bool ring = c.operation == CommOperation::kSendRecv;
  const double bytes = ring ? c.bytes : c.bytes / c.params.ranks;
  for (int k = 1; k < (ring ? 2 : c.params.ranks); ++k) {
    program.add(OpKind::kSend, k, bytes);
    program.add(OpKind::kRecv, c.params.ranks - k, bytes);
  }
  ProgramSet set{{.ranks = c.params.ranks, .period = 1}, {.ranks = c.params.ranks}, {}};
  set.classes.push_back(pack(program, 0, set, c.how.cluster.execution));
  return set;
}

Prediction predict_operation(const PublishedCase& c) {
  const ClusterSpec& cluster = c.how.cluster;
  constexpr double kMostMessages = 1 << 22;
  if (c.operation == CommOperation::kAllToAll &&
      double(c.params.ranks) * c.params.ranks > kMostMessages)
    return {.reason = concat("an all-to-all of ", c.params.ranks, " ranks has more than ",
                             kMostMessages, " messages")};
  std::array<double, 3> seconds{};
  if (c.operation == CommOperation::kAllGather) {
    const int nodes = int(ceil_div(c.params.ranks, cluster.node_size()));
    const std::string& library = cluster.collectives.all_gather;
    seconds = collective_seconds(cluster, library, {c.params.ranks, nodes, c.bytes});
  } else {
    const ProgramSet programs = messages_of(c);
    for (const AlphaSet set : kAlphaSets)
      seconds[size_t(set)] =
          simulate(programs, Topology(cluster, c.params.ranks), cluster, {.alpha = set}).makespan_s;
  }
  return {seconds[size_t(AlphaSet::kNcclLl)],
          *std::ranges::min_element(seconds) / (1 + cluster.error.value),
          *std::ranges::max_element(seconds) * (1 + cluster.error.value)};
}

double ratio(const PublishedCase& c, const Prediction& p) { return p.seconds / c.published_s; }

// The cluster, and everything but what the algorithms choose.
std::string problem_of(const PublishedCase& c) {
  PointParams p = c.params;
  p.algorithm = "";
  p.layout = {};
  p.options = {};
  return c.source + c.how.cluster.name + canonical_params_json(p);
}

}  // namespace

std::string PublishedCase::family() const {
  if (operation) return std::string(to_string(*operation));
  return (is_step() ? "steps, " : "") + params.algorithm;
}

std::string PublishedCase::kind() const {
  std::string name = is_step() ? "training steps" : "attention";
  if (operation) name = "messages, " + size();
  return name + (blind ? ", blind" : "");
}

std::string PublishedCase::error_group() const {
  if (operation) return "messages";
  if (is_step()) return "models";
  if (params.ranks == 1) return "one GPU";
  return find_algorithm(params.algorithm).collectives == CollectiveUse::kNone
             ? "rings"
             : "gathers and all-to-alls";
}

std::string PublishedCase::size() const {
  if (operation) return bytes < kLarge ? "below 16 MB" : "16 MB and more";
  const double tokens = double(params.problem.seq_len * params.problem.batch) / params.ranks;
  return tokens < 4096     ? "below 4K tokens a rank"
         : tokens <= 16384 ? "4K to 16K tokens a rank"
                           : "above 16K tokens a rank";
}

std::vector<PublishedCase> load_published(std::string folder) {
  if (folder == kPublishedCases && !fs::is_directory(folder))
    folder = (data_folder(folder) / folder).string();
  if (!fs::is_directory(folder))
    throw UsageError(folder, ": is no folder\n  hint: ", kPublishedCases, " holds the suite's");
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(folder))
    if (entry.path().extension() == ".json") files.push_back(entry.path());
  std::ranges::sort(files);
  std::vector<PublishedCase> cases;
  for (const fs::path& file : files) read_file(file, cases);
  if (cases.empty()) throw UsageError(folder, ": holds no cases");
  std::set<std::string> ids;
  for (const PublishedCase& c : cases)
    if (!ids.insert(c.id).second)
      throw UsageError(folder, ": two cases are named ", c.id,
                       "\n  hint: give each a name of its own");
  return cases;
}

Prediction predict(const PublishedCase& c) {
  if (c.operation) return predict_operation(c);
  Point point{.params = c.params};
  const std::vector<Point> points = on_cluster({point}, c.how);
  const PointRecord record = simulate_point(points.front(), c.how).record;
  if (record.status != PointStatus::kOk) return {.reason = record.reason};
  return {record.timing.median_s, record.timing.ci_low_s, record.timing.ci_high_s,
          record.metrics.contains(kBeyondTable)};
}

std::vector<PublishedErrors> errors_of(const std::vector<PublishedCase>& cases,
                                       const std::vector<Prediction>& predictions) {
  std::vector<std::string> names;
  std::map<std::string, std::vector<size_t>> members;
  const auto add = [&](const std::string& name, size_t i) {
    if (members[name].empty()) names.push_back(name);
    members[name].push_back(i);
  };
  for (int pass = 0; pass < 7; ++pass)
    for (size_t i = 0; i < cases.size(); ++i) {
      const PublishedCase& c = cases[i];
      if (!predictions[i].reason.empty()) continue;
      if (pass == 0) add(c.kind(), i);
      if (pass == 1 && c.held_out && !c.blind) add(c.kind() + ", held out", i);
      if (pass == 2 && !c.blind) add(c.error_group(), i);
      if (pass == 3) add(c.source + (c.blind ? ", blind" : ""), i);
      if (pass == 4) add(concat(c.family(), ", ", c.size(), c.blind ? ", blind" : ""), i);
      if (pass == 5 && !c.blind) add(kDevelopment, i);
      if (pass == 6 && c.blind) add(kBlind, i);
    }
  std::vector<PublishedErrors> out;
  for (const std::string& name : names) {
    std::vector<double> errors;
    PublishedErrors e{.name = name, .cases = int(members[name].size())};
    double log_sum = 0;
    for (const size_t i : members[name]) {
      const double r = ratio(cases[i], predictions[i]);
      errors.push_back(std::abs(r - 1));
      log_sum += std::log(r);
      e.inside += predictions[i].holds(cases[i].published_s);
    }
    e.median = median(errors);
    e.p95 = quantile(errors, 0.95);
    e.bias = std::exp(log_sum / e.cases) - 1;
    out.push_back(e);
  }
  return out;
}

PublishedOrder order_of(const std::vector<PublishedCase>& cases,
                        const std::vector<Prediction>& predictions) {
  PublishedOrder order;
  for (size_t a = 0; a < cases.size(); ++a)
    for (size_t b = a + 1; b < cases.size(); ++b) {
      const double apart = cases[a].published_s / cases[b].published_s;
      if (cases[a].blind || cases[b].blind || cases[a].operation || cases[b].operation ||
          std::max(apart, 1 / apart) <= kApart || !predictions[a].reason.empty() ||
          !predictions[b].reason.empty() || problem_of(cases[a]) != problem_of(cases[b]) ||
          point_id(cases[a].params) == point_id(cases[b].params))
        continue;
      ++order.pairs;
      order.right += (apart < 1) == (predictions[a].seconds < predictions[b].seconds);
    }
  return order;
}

std::vector<PublishedGoal> goals_of(const std::vector<PublishedErrors>& errors,
                                    const PublishedOrder& order) {
  std::vector<PublishedGoal> goals;
  const auto at_most = [&](std::string name, double bound, double found) {
    goals.push_back({std::move(name), bound, found, std::abs(found) <= bound});
  };
  const auto at_least = [&](std::string name, double bound, int part, int whole) {
    const double found = double(part) / whole;
    goals.push_back({std::move(name), bound, found, found >= bound, /*least=*/true});
  };
  for (const PublishedErrors& e : errors) {
    if (e.name == "attention") {
      at_most("attention, median error", 0.05, e.median);
      at_most("attention, 95th percentile", 0.15, e.p95);
      at_least("attention inside the interval", 0.8, e.inside, e.cases);
    }
    if (e.name == "rings" || e.name == "gathers and all-to-alls")
      at_most(e.name + ", bias", 0.05, e.bias);
    if (e.name == "messages, 16 MB and more") at_most(e.name + ", median error", 0.1, e.median);
    if (e.name == "messages, below 16 MB") at_most(e.name + ", median error", 0.3, e.median);
  }
  if (order.pairs > 0)
    at_least("pairs of algorithms more than 5 % apart in the right order", 0.95, order.right,
             order.pairs);
  return goals;
}

}  // namespace longnet
