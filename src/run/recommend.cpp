#include "run/recommend.h"

#include <algorithm>
#include <cmath>

#include "core/check.h"
#include "io/units.h"
#include "schedule/lower_collectives.h"
#include "schedule/registry.h"

namespace longnet {
namespace {

// About the median error on a calibrated machine, 4.7 % (results/reference/validation-xeon.md).
constexpr double kSure = 0.05;

// The cluster's own collectives, and gathers in fewer steps. The other lowerings would add none: a
// ring is what libraries do, bruck is what recursive doubling takes where P is no power of two, and
// all-to-alls are the cluster's.
const std::vector<AllGatherAlgorithm> kCollectives{AllGatherAlgorithm::kNative,
                                                   AllGatherAlgorithm::kRecursiveDoubling,
                                                   AllGatherAlgorithm::kHierarchical};

}  // namespace

double tie_share(const ClusterSpec& cluster) { return cluster.error.value > 0 ? 0 : kSure; }

std::string question_config(const Question& o, const ClusterSpec& cluster) {
  std::vector<std::string> names;
  for (const AlgorithmInfo& a : algorithms())
    if (a.pattern != PatternKind::kSparse && (o.pass != "forward" || a.forward_of.empty()))
      names.emplace_back(a.name);
  JsonNode sweep =
      JsonNode::object({{"algorithm", to_json(names)},
                        {"seq_len", o.seq_len},
                        {"ranks", o.ranks},
                        {"batch", JsonNode::object({{"rule", "fixed"}, {"size", o.batch}})},
                        {"collective", to_json(kCollectives)},
                        {"ulysses_degree", "divisors"},
                        {"keep_gathered", to_json(std::vector{false, true})},
                        {"pass", o.pass}});
  if (o.causal) sweep.set("layout", to_json(enum_names<LayoutKind>()));
  if (o.ranks % cluster.node_size() == 0 && o.ranks > cluster.node_size())
    sweep.set("ring_inner", cluster.node_size());
  JsonNode segments = JsonNode::array(), dilated = JsonNode::object();
  for (const std::string& text : o.dilated_segments) {
    const auto tokens = try_parse_tokens(text);
    segments.push(tokens ? JsonNode(*tokens) : JsonNode(text));
  }
  if (!o.dilated_segments.empty()) dilated.set("segments", segments);
  return dump_json(JsonNode::object(
      {{"schema_version", 1},
       {"name", "question"},
       {"model", JsonNode::object({{"heads", o.heads},
                                   {"kv_heads", o.kv_heads > 0 ? o.kv_heads : o.heads},
                                   {"head_dim", o.head_dim},
                                   {"dtype", o.dtype},
                                   {"causal", o.causal}})},
       {"dilated", dilated},
       {"sweep", sweep}}));
}

std::string choice_text(PointParams p) {
  p.pass = Pass::kForward;  // all candidates have the question's
  const std::string options = options_text(p, /*with_sections=*/false);
  return options.empty() ? p.algorithm : p.algorithm + " " + options;
}

std::string reason_text(const PointRecord& r, double fastest_s) {
  const double total = r.timing.median_s;
  const double waits = r.phases.exposed_communication_s / total;
  std::string text;
  if (waits < 0.02)
    text = "attention decides, communication is hidden";
  else
    text = concat("waits ", std::lround(100 * waits), " % of the time for others");
  if (r.work.balance < 0.95)
    text += concat("; ",
                   r.params.problem.causal && r.params.layout == LayoutKind::kContiguous
                       ? "the mask"
                       : "unequal parts of tokens or heads",
                   " may leave ranks idle, balance ", std::round(100 * r.work.balance) / 100);
  if (total > 1.1 * fastest_s)
    text += concat("; ", std::round(100 * total / fastest_s) / 100, " x the first");
  else if (total > 1.0005 * fastest_s)
    text += concat("; ", std::round(1000 * (total / fastest_s - 1)) / 10, " % behind the first");
  if (const Guess guess = guess_of(r); guess > Guess::kLongerRows)
    text += concat("; ", to_string(guess));
  return text;
}

std::string few_of(const std::vector<std::string>& names) {
  constexpr size_t kFew = 4;
  if (names.size() <= kFew) return join(names, ", ");
  return concat(join(std::vector(names.begin(), names.begin() + kFew), ", "), " and ",
                names.size() - kFew, " more");
}

int64_t longest_row(const DeviceSpec& device, const AttentionProblem& p, Pass pass) {
  const auto of_pass = [&](bool backward) {
    const auto order = [&](const KernelRow& row) {  // the longest of its head_dim
      return std::tuple(!row.prices(device.kernel, p.dtype, backward) || row.causal != p.causal,
                        std::abs(row.head_dim - double(p.head_dim)), -row.rows);
    };
    return std::ranges::min_element(device.attend, {}, order)->rows;
  };
  return int64_t(pass == Pass::kForward    ? of_pass(false)
                 : pass == Pass::kBackward ? of_pass(true)
                                           : std::min(of_pass(false), of_pass(true)));
}

bool ties(const PointRecord& record, const PointRecord& first, double share) {
  const TimingRecord &own = record.timing, &best = first.timing;
  return own.median_s <= std::max(best.ci_high_s, (1 + share) * best.median_s) ||
         own.ci_low_s <= best.median_s;
}

std::string answer_text(const std::vector<PointRecord>& ranked, double share) {
  if (ranked.empty()) return "none fits";
  const PointRecord& best = ranked[0];
  std::string text = concat(
      "use ", choice_text(best.params), ", ", format_seconds(best.timing.median_s), " (",
      format_seconds(best.timing.ci_low_s), " to ", format_seconds(best.timing.ci_high_s), ")");
  if (const Guess guess = guess_of(best); guess > Guess::kLongerRows)
    text += concat(", ", to_string(guess));
  std::vector<std::string> names;
  for (size_t i = 1; i < ranked.size(); ++i)
    if (ties(ranked[i], best, share)) names.push_back(choice_text(ranked[i].params));
  return text + (names.empty() ? "; nothing ties with it" : "; tied with it: " + few_of(names));
}

void Ranking::add(PointRecord record, uint64_t program) {
  const AlgorithmInfo& algorithm = find_algorithm(record.params.algorithm);
  if (record.status != PointStatus::kOk) {
    if (!algorithm.one_rank_only) stopped.push_back(std::move(record));
    return;
  }
  const std::string name = choice_text(record.params);
  const auto [at, is_new] = names_.emplace(std::pair{algorithm.pattern, program}, name);
  if (!is_new) return same.push_back(concat(name, " (", at->second, ")"));
  (algorithm.pattern == PatternKind::kDilated ? dilated : exact).push_back(std::move(record));
}

void Ranking::sort() {
  for (std::vector<PointRecord>* records : {&exact, &dilated})
    std::ranges::stable_sort(*records, {}, [](const PointRecord& r) { return r.timing.median_s; });
}

bool Ranking::has_guess(Guess guess) const {
  const auto is_one = [&](const PointRecord& r) { return guess_of(r) == guess; };
  return std::ranges::any_of(exact, is_one) || std::ranges::any_of(dilated, is_one);
}

bool Ranking::answers_with_rings_over_nodes(const ClusterSpec& cluster, double share) const {
  return std::ranges::any_of(exact, [&](const PointRecord& r) {
    const AlgorithmInfo& a = find_algorithm(r.params.algorithm);
    const bool has_ring = a.collectives == CollectiveUse::kNone || a.name == "usp";
    return has_ring && r.params.ranks > cluster.node_size() && ties(r, exact[0], share) &&
           cluster.execution == ExecutionKind::kStreams;  // GPUs
  });
}

std::vector<std::string> Ranking::left_out() const {
  std::vector<std::string> lines;
  if (!same.empty())
    lines.push_back(concat(same.size(), " left out, as their ranks do the same: ", few_of(same)));
  std::vector<std::pair<std::string, std::vector<std::string>>> names;  // by reason
  for (const PointRecord& r : stopped) {
    auto of_reason = std::ranges::find(names, r.reason, [](const auto& n) { return n.first; });
    if (of_reason == names.end())
      of_reason = names.emplace(of_reason, r.reason, std::vector<std::string>());
    of_reason->second.push_back(choice_text(r.params));
  }
  for (const auto& [reason, stopped_so] : names)
    lines.push_back(concat("left out: ", few_of(stopped_so), ": ", reason));
  return lines;
}

}  // namespace longnet
