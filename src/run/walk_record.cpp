// From the lines of a walk's journal to the record of its point (walk_point.h).
#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <set>

#include "core/check.h"
#include "core/tagged_memory.h"
#include "measure/machine_load.h"
#include "measure/statistics.h"
#include "run/fill_record.h"
#include "run/walk_point.h"
#include "schedule/closed_form_counts.h"

namespace longnet {
namespace {

// The name of the pass, and of its seconds.
std::string pass_of(const WalkData& w) { return std::string(to_string(w.pass())); }

double total(const WalkData& w, const std::string& what, int walk) {
  double sum = 0;
  for (const UnitLine& l : w.lines)
    if (l.walk == walk) sum += l.seconds.at(what);
  return sum;
}

double mean_per_walk(const WalkData& w, const std::string& what) {
  double sum = 0;
  for (int walk = w.warmup(); walk < w.walks; ++walk) sum += total(w, what, walk);
  return sum / (w.walks - w.warmup());
}

// A walk's time is the sum over ranks: they run one after another. With a share, each unit stands
// for those left out.
void fill_timing(const WalkData& w, PointRecord& record) {
  const double scale = w.plan.share < 1 ? w.units.all_flops / w.units.flops : 1;
  std::vector<double> samples;
  for (int walk = w.warmup(); walk < w.walks; ++walk)
    samples.push_back(total(w, pass_of(w), walk) * scale);
  set_timing(record, samples, w.warmup(), "sum");
  const double merge = mean_per_walk(w, "merge") * scale;
  set_phases(record, record.timing.median_s - merge, merge);
  std::map<Rank, std::vector<double>> of_rank;  // per walk
  for (const UnitLine& l : w.lines) {
    auto& times = of_rank[l.unit.rank];
    times.resize(size_t(w.walks));
    times[size_t(l.walk)] += l.seconds.at(pass_of(w));
  }
  for (auto& [rank, times] : of_rank) {
    times.erase(times.begin(), times.begin() + w.warmup());
    double pairs = 0;
    std::optional<int64_t> memory_bytes;
    for (size_t i = 0; i < w.units.units.size(); ++i)
      if (w.units.units[i].rank == rank) pairs += w.units.accounts[i].pairs;
    for (const UnitLine& l : w.lines)
      if (l.unit.rank == rank && l.unit_bytes > 0)
        memory_bytes = std::max(memory_bytes.value_or(0), l.unit_bytes);
    record.per_rank.push_back(
        {.rank = rank, .median_s = median(times), .pairs = pairs, .memory_bytes = memory_bytes});
  }
}

// One rank's pass is what a cluster of such devices would take for its compute: the slowest
// replayed rank decides, and what its messages cost beside it comes from latency and bandwidth.
void fill_replayed(const WalkData& w, PointRecord& record) {
  double slowest = 0, merge = 0;  // seconds of the slowest rank
  for (const RankRecord& r : record.per_rank) {
    if (r.median_s <= slowest) continue;
    slowest = r.median_s;
    merge = 0;
    for (const UnitLine& l : w.lines)
      if (l.unit.rank == r.rank && l.walk == w.walks - 1) merge += l.seconds.at("merge");
  }
  double communication = 0;
  for (const RankAccount& a : w.units.accounts)
    communication = std::max(
        communication, w.run.config.latency_s.value_or(0) * double(a.messages_sent) +
                           double(a.bytes_received) / w.run.config.bytes_per_s.value_or(INFINITY));
  communication *= double(w.units.units.size()) / double(w.run.replay.size());
  const bool modelled = w.run.config.bytes_per_s.has_value();
  set_timing(record, {slowest + (modelled ? communication : 0)}, w.warmup());
  set_phases(record, slowest - merge, merge, modelled ? communication : kNotMeasured);
  record.metrics["communication_modelled"] = modelled ? 1 : 0;
  record.metrics["replayed_ranks"] = double(w.run.replay.size());
}

struct WalkedGradients {
  GradientOutcome sum;
  Conservation laws;
};

// Adds up a walk's gradients; of errors and laws the worst walk's stay.
void add_gradients(const WalkData& w, int walk, std::optional<WalkedGradients>& worst) {
  const AttentionProblem& p = w.plan.point.params.problem;
  GradientOutcome sum;
  for (const UnitLine& l : w.lines) {
    if (walk != l.walk) continue;
    check(l.gradients.has_value(), "unit of rank ", l.unit.rank, " without gradients");
    for (size_t i = 0; i < sum.digests.size(); ++i) {
      sum.digests[i] += l.gradients->digests[i];
      sum.errors[i].add(l.gradients->errors[i]);
    }
    sum.laws.add(l.gradients->laws, size_t(2 * l.unit.first_batch * p.num_kv_heads * p.head_dim));
  }
  Conservation laws = conservation(sum.laws, w.sharded, /*output_is_partial=*/true,
                                   law_tolerance(w.rounds_probabilities(), w.sharded));
  if (worst) {
    for (size_t i = 0; i < sum.errors.size(); ++i) sum.errors[i].keep_worst(worst->sum.errors[i]);
    laws.keep_worst(worst->laws);
  }
  worst = {std::move(sum), laws};
}

void fill_content(const WalkData& w, PointRecord& record) {
  ContentRecord content;  // the last walk's
  std::optional<SampleErrors> worst;
  std::optional<WalkedGradients> gradients;
  int64_t nan_values = 0;
  for (int walk = 0; walk < w.walks; ++walk) {
    SampleErrors errors;
    content = {};
    for (const UnitLine& l : w.lines) {
      if (l.walk != walk) continue;
      content.add({{}, l.input_digest});
      errors.add(l.errors);
      for (const OutputSummary& head : l.heads) content.add({head});
    }
    worst ? worst->keep_worst(errors) : void(worst = errors);
    nan_values = std::max(nan_values, content.nan_values);
    if (has_backward(w.pass())) add_gradients(w, walk, gradients);
  }
  int64_t tokens = record.work.tokens;
  if (!w.run.replay.empty()) {
    tokens = 0;
    for (const WalkUnit& unit : w.units.units)
      tokens += w.sharded.layout.shard(unit.rank).tokens() * unit.batches;
  }
  CheckOutcome outcome = w.judged(worst.value(), nan_values);
  std::array<CheckOutcome, 3> of_gradients;
  if (gradients) {
    const GradientOutcome& last = gradients->sum;
    content.gradient_digests = last.digests;
    of_gradients = judge_gradients(
        last.errors, w.sharded,
        gradient_tolerance(w.rounds_probabilities(), w.sharded, w.options.check.tolerance));
    outcome = worst_of(outcome, of_gradients);
  }
  set_content(record, content, tokens * record.params.problem.num_heads);
  set_check(record, outcome, std::ranges::any_of(w.lines, &UnitLine::passes_poison));
  if (gradients) set_gradients(record, of_gradients, gradients->laws, {w.choice, w.keys});
  set_strata(record, w.choice, worst->chosen, w.options.check.max_queries);
  double poison = 0, compare = 0;
  for (int walk = 0; walk < w.walks; ++walk) {
    poison += total(w, "poison", walk);
    compare += total(w, "check", walk);
  }
  set_check_cost(record, w.walks, poison, compare);
}

void fill_memory(const WalkData& w, PointRecord& record) {
  const std::set<Rank> ranks = w.units.ranks();
  auto by_tag = walk_memory(make_schedule(w.plan.point.params, w.plan.batches_at_once),
                            {ranks.begin(), ranks.end()}, w.plan.share < 1);
  by_tag[kWorkspaceTag] = w.plan.workspace_bytes;
  const int64_t predicted = total_bytes(by_tag);
  int64_t measured = 0, resident = 0, received = 0, expected = 0;
  for (const UnitLine& l : w.lines) {
    measured = std::max(measured, l.held_bytes);
    resident = std::max(resident, l.resident_bytes);
    received += l.received_bytes;
  }
  for (const RankAccount& a : w.units.accounts) expected += a.bytes_received * w.walks;
  // A resumed walk may have held less in each of its parts; a GPU holds lists of tasks beside.
  const bool as_planned = w.resumed_units > 0 && !w.backend.on_gpu();
  set_memory(record, predicted, as_planned ? by_tag : w.held_by_tag, measured);
  record.metrics["resident_peak_bytes"] = double(resident);
  if (w.resident_growth_bytes && !w.backend.on_gpu())
    set_resident_memory(record, *w.resident_growth_bytes, w.held_bytes);
  record.metrics["received_bytes"] = double(received) / w.walks;
  if (!w.backend.on_gpu() && (w.resumed_units > 0 ? measured > predicted : measured != predicted))
    fail_check(record, concat("measured memory differs from the predicted: ", measured, " and ",
                              predicted, " bytes"));
  if (w.plan.share >= 1 && received != expected)
    fail_check(record,
               concat("the walk made ", received, " bytes of messages, predicted ", expected));
}

// The share of the peak is the median of the units' own; what others used of the cores is the mean
// over their time.
void fill_conditions(const WalkData& w, PointRecord& record) {
  std::vector<double> rates, peaks;
  // Replayed ranks stand for all, each on a device of its own.
  const double devices = w.run.replay.empty() ? 1 : record.params.ranks;
  double busy_s = 0, wall_s = 0;
  int64_t busy_units = 0;
  for (size_t i = 0; i < w.lines.size(); ++i) {
    const UnitLine& l = w.lines[i];
    if (l.walk < w.warmup()) continue;
    const double flops = w.units.accounts[i % w.units.accounts.size()].flops;
    rates.push_back(devices * flops / l.seconds.at(pass_of(w)));
    peaks.push_back(devices * l.peak_flops_per_s);
    if (std::isnan(l.busy_share)) continue;
    busy_s += l.busy_share * l.seconds.at("wall");
    wall_s += l.seconds.at("wall");
    busy_units += l.busy_share > kBusyShare;
  }
  set_share_of_peak(record, rates, peaks);
  if (!(wall_s > 0)) return;
  record.metrics["busy_share"] = busy_s / wall_s;
  record.metrics["busy_units"] = double(busy_units);
}

// The closed forms of what ranks send against the plan, and of what the walk made in their place.
void fill_closed_forms(const WalkData& w, PointRecord& record) {
  const PointParams& p = record.params;
  ShardedProblem sharded = sharded_problem(p);
  const CollectiveChoice choice = collective_choice(p);
  RankCounts most;
  for (const Rank r : accounted_ranks(p.ranks, kMaxAccountedRanks)) {
    const auto form = closed_form_counts(p.algorithm, sharded, choice, r, p.pass);
    if (!form) return;  // then no rank has one
    most.bytes_sent = std::max(most.bytes_sent, form->bytes_sent);
    most.messages_sent = std::max(most.messages_sent, form->messages_sent);
  }
  if (w.plan.share < 1) return set_closed_forms(record, most);
  std::map<std::pair<Rank, int64_t>, RankCounts> known;  // by rank and part of the batch
  std::string wrong;                                     // the first
  for (const UnitLine& l : w.lines) {
    const auto [at, is_new] = known.try_emplace({l.unit.rank, l.unit.batches});
    sharded.problem.batch = l.unit.batches;
    if (is_new) at->second = *closed_form_counts(p.algorithm, sharded, choice, l.unit.rank, p.pass);
    const auto& [key, form] = *at;
    most.memory_bytes = std::max(most.memory_bytes, form.memory_bytes);
    if (wrong.empty() &&
        (l.received_bytes != form.bytes_received || l.slot_bytes != form.memory_bytes))
      wrong =
          concat("of rank ", l.unit.rank, " a closed form says ", to_text(form), "; its unit made ",
                 l.received_bytes, " bytes of messages and held ", l.slot_bytes, " in slots");
  }
  set_closed_forms(record, most);
  if (!wrong.empty()) fail_check(record, wrong);
}

void fill_metrics(const WalkData& w, PointRecord& record) {
  auto& m = record.metrics;
  for (const auto& [what, seconds] : w.lines.front().seconds)
    if (what != pass_of(w)) m[concat("walk_", what, "_s")] = mean_per_walk(w, what);
  double attend = m["walk_attend_s"];
  if (has_backward(w.pass())) attend += m["walk_attend_backward_s"];
  m["walk_beside_attends_share"] = attend > 0 ? (m["walk_wall_s"] - attend) / attend : 0;
  m["walk_units"] = double(w.units.units.size());
  if (w.resumed_units > 0) m["walk_resumed_units"] = double(w.resumed_units);
  m["walk_batches_at_once"] = double(w.plan.batches_at_once);
  if (w.plan.share < 1) {
    double pairs = 0;
    for (size_t i = 0; i < w.units.units.size(); ++i)
      pairs += w.units.accounts[i].flops * w.lines[i].attended_share;
    m["measured_share"] = pairs / w.units.all_flops;
    m["measured_s"] = mean_per_walk(w, "wall");
    return;
  }
  m["attend_flops_per_s"] = attend > 0 ? w.units.flops / attend : 0;
  std::vector<double> rates;
  for (const UnitLine& l : w.lines)
    if (l.kernel_flops_per_s > 0) rates.push_back(l.kernel_flops_per_s);
  if (rates.empty()) return;
  m["kernel_flops_per_s"] = median(rates);
  m["attend_share_of_kernel"] = m["attend_flops_per_s"] / m["kernel_flops_per_s"];
}

}  // namespace

void fill_walk_record(const WalkData& w, PointRecord& record) {
  fill_timing(w, record);
  fill_memory(w, record);
  if (w.plan.share >= 1) fill_content(w, record);
  if (!w.run.replay.empty()) fill_replayed(w, record);
  record.source = !w.run.replay.empty() ? Source::kReplayed
                  : w.plan.share < 1    ? Source::kExtrapolated
                                        : Source::kMeasured;
  fill_conditions(w, record);
  fill_metrics(w, record);
  fill_closed_forms(w, record);
  set_predicted_traffic(record, w.plan.account.max_bytes_sent, w.plan.account.max_messages_sent);
}

}  // namespace longnet
