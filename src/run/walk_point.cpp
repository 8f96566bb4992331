#include "run/walk_point.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <new>
#include <sstream>
#include <tuple>

#include "core/check.h"
#include "core/stopwatch.h"
#include "io/units.h"
#include "measure/machine_load.h"
#include "measure/rank_place.h"
#include "measure/resident_memory.h"
#include "measure/sampler.h"
#include "run/fill_record.h"
#include "schedule/check_schedule.h"

namespace longnet {
namespace {

std::vector<WalkUnit> every_unit(const PointParams& p, int64_t at_once,
                                 const std::vector<Rank>& replay) {
  std::vector<WalkUnit> units;
  for (int64_t first = 0; first < p.problem.batch; first += at_once) {
    const int64_t batches = std::min(at_once, p.problem.batch - first);
    if (replay.empty())
      for (Rank r = 0; r < p.ranks; ++r) units.push_back({r, first, batches});
    for (Rank r : replay) units.push_back({r, first, batches});
  }
  return units;
}

int64_t fewest_samples(const CheckConfig& c) { return std::max(kFewestSamples, c.sampled_queries); }

constexpr double kSecondsPerRate = 30;
constexpr int kMaxCheckedRanks = 128;  // beyond, the proof of a schedule takes longer than a point

std::map<std::string, double> to_seconds(const UnitOutcome& o, Pass pass) {
  const WalkTimes& t = o.times;
  std::map<std::string, double> s{{"bind", t.bind_s},         {"poison", t.poison_s},
                                  {"generate", t.generate_s}, {"receive", t.receive_s},
                                  {"attend", t.attend_s},     {"pack", t.pack_s},
                                  {"merge", t.merge_s},       {"summarize", t.summarize_s},
                                  {"check", t.check_s},       {"wall", t.wall_s}};
  s[std::string(to_string(pass))] = t.pass_s(o.share);
  if (has_backward(pass)) s["attend_backward"] = t.attend_backward_s;
  if (!has_forward(pass)) s["output"] = t.output_s;
  return s;
}

UnitLine to_line(const UnitOutcome& o, int walk, Pass pass, const MemoryLedger& ledger) {
  UnitLine line{o, walk, utc_rfc3339(), to_seconds(o, pass)};
  line.held_bytes = ledger.peak_bytes();
  line.resident_bytes = peak_resident_bytes().value_or(0);
  line.errors.rounded = false;  // the tolerance of a walk is its backend's
  line.attended_share = o.share.flops_share();
  return line;
}

std::string journal_path(const PointPlan& plan, const VirtualRun& run) {
  const auto name = concat("shards-", plan.point.id, ".jsonl");
  return run.directory.empty() ? "" : (std::filesystem::path(run.directory) / name).string();
}

// Returns the plan with the share of pairs that an earlier process began with.
PointPlan continued(PointPlan plan, const std::string& journal) {
  if (plan.share < 1 && !journal.empty()) plan.share = ShardJournal::share_of(journal, plan.share);
  return plan;
}

class Walker {
 public:
  Walker(const PointPlan& plan, const RunnerOptions& options, const VirtualRun& run)
      : w_{.plan = continued(plan, journal_path(plan, run)),
           .options = options,
           .run = run,
           .backend = backend_of(plan.point.params.kernel),
           .walks = int(options.measure.warmup + options.measure.min_samples),
           .sharded = make_schedule(plan.point.params).sharded},
        queries_(fewest_samples(options.check)) {
    w_.units = plan_units(w_.plan, run.replay);
    const std::set<Rank> ranks = w_.units.ranks();
    w_.choice = stratify(w_.sharded, choose_samples(w_.sharded, queries_ / 2),
                         options.check.max_queries, {ranks.begin(), ranks.end()});
    const PointParams& p = params();
    walk_ = w_.backend.make_walk(
        p, [&p](int64_t batches) { return make_schedule(p, batches); }, ledger_);
    if (has_backward(p.pass)) {
      w_.keys = choose_keys(w_.sharded, w_.choice.queries, ranks);
      walk_->compare_keys(w_.keys.keys);
      walk_->end_with(last_rank_ = *ranks.rbegin());
    }
    if (const std::string path = journal_path(plan, run); !path.empty()) {
      journal_ = std::make_unique<ShardJournal>(
          path, plan.point.id, text_of(w_.units, w_.plan, w_.walks, options.check), w_.plan.share);
      w_.lines = journal_->lines();
      w_.resumed_units = int64_t(w_.lines.size());
      if (!w_.lines.empty()) journal_->read_sums(sums_after(w_.lines.back().unit));
    }
  }

  // False: stopped early.
  bool walk_all() {
    std::set<std::tuple<int, Rank, int64_t>> done;
    for (const UnitLine& l : w_.lines) done.insert(key(l.walk, l.unit));
    std::vector<std::pair<int, size_t>> todo;  // walk and unit
    double flops = 0;
    for (int w = 0; w < w_.walks; ++w)
      for (size_t i = 0; i < w_.units.units.size(); ++i) {
        if (done.contains(key(w, w_.units.units[i]))) continue;
        todo.emplace_back(w, i);
        flops += w_.units.accounts[i].flops;
      }
    const double begin = steady_seconds(), all = flops;
    double tokens = 0;
    for (const auto& [w, i] : todo) {
      const WalkUnit& unit = w_.units.units[i];
      if (w_.run.stop && w_.run.stop()) return false;
      const OtherLoad load(this_place().cpus);
      const double before = peak_now(i);
      UnitLine line = to_line(run_unit(unit), w, params().pass, ledger_);
      line.passes_poison = line.poisoned && w_.judged(*line.poisoned, 0).pass;
      line.peak_flops_per_s = (before + peak_now(i)) / 2;
      line.busy_share = load.share(load.own_s());
      line.kernel_flops_per_s = kernel_rate();
      if (journal_) journal_->append(line, sums_after(unit));
      w_.lines.push_back(std::move(line));
      flops -= w_.units.accounts[i].flops;
      tokens += double(w_.sharded.layout.shard(unit.rank).tokens() * unit.batches);
      report(steady_seconds() - begin, all, flops, tokens);
    }
    return true;
  }

  const WalkData& data() {
    w_.held_by_tag = ledger_.peak_by_tag();
    w_.resident_growth_bytes = resident_.bytes();
    w_.held_bytes = ledger_.peak_bytes();
    return w_;
  }

 private:
  const PointParams& params() const { return w_.plan.point.params; }
  static std::tuple<int, Rank, int64_t> key(int walk, const WalkUnit& unit) {
    return {walk, unit.rank, unit.first_batch};
  }

  // The sums that the next unit adds to; empty where it begins anew.
  std::span<std::byte> sums_after(const WalkUnit& unit) {
    if (!has_backward(params().pass) || w_.plan.share < 1 || unit.rank == last_rank_) return {};
    return walk_->sums_after(unit);
  }

  UnitOutcome run_unit(const WalkUnit& unit) {
    if (w_.plan.share < 1) return walk_->run_share(unit, w_.units.unit_share);
    const int64_t each = ceil_div(queries_, int64_t(w_.units.units.size()));
    return walk_->run(unit, choose_shard_samples(w_.sharded, unit.rank, unit.first_batch,
                                                 unit.batches, w_.choice.queries, each));
  }

  // Peak measured in a window of a twentieth of the unit's time.
  double peak_now(size_t unit) const {
    const double run_s = w_.plan.estimated_s * w_.units.accounts[unit].flops / w_.units.flops;
    return w_.backend.peak_now(params(), std::clamp(0.05 * run_s, 1e-3, 50e-3), w_.options);
  }

  // Measures the kernel's rate beside the walk, in the same conditions, from time to time. 0: not
  // now; walks in part and of backward passes never do.
  double kernel_rate() {
    const double now = steady_seconds();
    if (now < next_rate_s_ || w_.plan.share < 1 || has_backward(params().pass)) return 0;
    next_rate_s_ = now + kSecondsPerRate;
    return w_.backend.attend_rate(params());
  }

  void report(double elapsed, double todo, double left, double tokens) const {
    if (!w_.run.progress) return;
    const double units = double(w_.units.units.size()) * w_.walks;
    w_.run.progress({.units_done = int64_t(w_.lines.size()),
                     .units = int64_t(units),
                     .share_done = 1 - left / std::max(1.0, w_.units.flops * w_.walks),
                     .tokens_per_s = tokens / std::max(elapsed, 1e-9),
                     .left_s = todo > left ? elapsed * left / (todo - left) : 0});
  }

  WalkData w_;
  int64_t queries_;
  Rank last_rank_ = 0;  // the last one that is walked
  ResidentGrowth resident_;
  MemoryLedger ledger_;
  std::unique_ptr<UnitWalk> walk_;
  std::unique_ptr<ShardJournal> journal_;
  double next_rate_s_ = 0;
};

}  // namespace

std::set<Rank> UnitPlan::ranks() const {
  std::set<Rank> ranks;
  for (const WalkUnit& unit : units) ranks.insert(unit.rank);
  return ranks;
}

UnitPlan plan_units(const PointPlan& plan, const std::vector<Rank>& replay) {
  const PointParams& p = plan.point.params;
  UnitPlan u{.units = every_unit(p, plan.batches_at_once, replay), .accounts = {}};
  if (plan.share < 1) {
    const size_t all = u.units.size();
    const double wanted = plan.share * double(all);
    std::vector<WalkUnit> some;
    const size_t count = size_t(std::ceil(wanted));
    for (size_t i = 0; i < count; ++i) some.push_back(u.units[(2 * i + 1) * all / (2 * count)]);
    u.units = std::move(some);
    u.unit_share = wanted / double(count);
  }
  std::map<std::pair<Rank, int64_t>, RankAccount> known;
  for (const WalkUnit& unit : u.units) {
    const auto [it, is_new] = known.try_emplace({unit.rank, unit.batches});
    if (is_new) {
      const Schedule schedule = make_schedule(p, unit.batches);
      it->second = account(schedule.sharded, schedule.program(unit.rank), unit.rank);
    }
    u.accounts.push_back(it->second);
    u.flops += it->second.flops;
  }
  u.all_flops = plan.account.flops;
  return u;
}

std::string text_of(const UnitPlan& units, const PointPlan& plan, int walks,
                    const CheckConfig& check) {
  std::string text = concat(canonical_params_json(plan.point.params), "; ", walks, " walks of ",
                            units.units.size(), " units of ", plan.batches_at_once, " sequences; ",
                            fewest_samples(check), " to ", check.max_queries, " samples; ranks");
  const std::set<Rank> ranks = units.ranks();
  if (int(ranks.size()) == plan.point.params.ranks) return text + " all";
  for (Rank r : ranks) text += concat(" ", r);
  return text;
}

std::vector<Rank> parse_ranks(const std::string& text) {
  std::set<Rank> ranks;
  std::istringstream list(text);
  for (std::string item; std::getline(list, item, ',');) {
    if (item.empty() || item.size() >= 9 ||
        item.find_first_not_of("0123456789") != std::string::npos)
      throw UsageError("'", text, "' is no list of ranks\n  hint: e.g. --replay 0,17,4095");
    ranks.insert(std::stoi(item));
  }
  return {ranks.begin(), ranks.end()};
}

std::optional<PointRecord> walk_point(const PointPlan& plan, const RunnerOptions& options,
                                      const VirtualRun& run) {
  const PointParams& p = plan.point.params;
  PointRecord record = make_record(plan.point);
  set_plan(record, plan);
  set_depth(record, p);
  const bool is_proven = p.ranks <= kMaxCheckedRanks;
  double proof_s = 0;
  if (is_proven) {
    const Stopwatch watch(proof_s);
    require_correct(make_schedule(p));
  }
  try {
    Walker walker(plan, options, run);
    if (!walker.walk_all()) return std::nullopt;
    fill_walk_record(walker.data(), record);
    if (is_proven) record.check.proof_s = proof_s;
  } catch (const std::bad_alloc& e) {
    set_status(record, PointStatus::kOom, out_of_memory_reason(e, plan, ""));
    return record;
  }
  backend_of(p.kernel).record_walking_device(record);
  return record;
}

}  // namespace longnet
