#include "lnbench/virtual_runner.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <new>
#include <set>
#include <sstream>
#include <tuple>

#include "core/check.h"
#include "execute/virtual_walk.h"
#include "io/expand.h"
#include "io/shard_journal.h"
#include "io/units.h"
#include "kernels/attention_kernel.h"
#include "lnbench/attend_rate.h"
#include "lnbench/record_parts.h"
#include "measure/sampler.h"
#include "measure/statistics.h"
#include "schedule/check_schedule.h"
#include "schedule/registry.h"

namespace longnet {
namespace {

constexpr double kSecondsPerRate = 30;
constexpr int kMaxCheckedRanks = 128;  // beyond, the proof of a schedule takes longer than a point

// Units in the order of their walk, and what each costs.
struct UnitPlan {
  std::vector<WalkUnit> units;
  std::vector<RankAccount> accounts;  // of each
  double flops = 0;                   // of these units
  double all_flops = 0;               // of the whole point
  double unit_share = 1;              // of each unit's pairs that is run
};

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

UnitPlan plan_units(const PointPlan& plan, const VirtualRun& run) {
  const PointParams& p = plan.point.params;
  UnitPlan u{.units = every_unit(p, plan.batches_at_once, run.replay), .accounts = {}};
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
      PointParams part = p;
      part.problem.batch = unit.batches;
      const Schedule schedule = make_schedule(part);
      it->second = account(schedule.sharded, schedule.program(unit.rank), unit.rank);
    }
    u.accounts.push_back(it->second);
    u.flops += it->second.flops;
  }
  u.all_flops = plan.account.flops;
  return u;
}

std::map<std::string, double> to_seconds(const ShardOutcome& o) {
  const WalkTimes& t = o.times;
  std::map<std::string, double> s{{"bind", t.bind_s},         {"poison", t.poison_s},
                                  {"generate", t.generate_s}, {"receive", t.receive_s},
                                  {"attend", t.attend_s},     {"select", t.select_s},
                                  {"merge", t.merge_s},       {"summarize", t.summarize_s},
                                  {"check", t.check_s},       {"wall", t.wall_s}};
  s["forward"] = o.share.all_pairs > 0 ? o.share.forward_s(t) : t.forward_s();
  return s;
}

ShardLine to_line(const ShardOutcome& o, int walk, const MemoryLedger& ledger) {
  ShardLine line{.walk = walk,
                 .rank = o.unit.rank,
                 .first_batch = o.unit.first_batch,
                 .batches = o.unit.batches,
                 .finished_utc = utc_rfc3339(),
                 .seconds = to_seconds(o),
                 .received_bytes = o.received_bytes,
                 .held_bytes = ledger.peak_bytes(),
                 .resident_bytes = int64_t(peak_resident_bytes()),
                 .input_digest = o.input_digest,
                 .queries = o.errors.queries,
                 .difference = o.errors.difference,
                 .norm = o.errors.norm,
                 .worst_row = o.errors.worst_row,
                 .worst_lse = o.errors.worst_lse};
  if (o.share.all_pairs > 0) line.attended_share = o.share.pairs / o.share.all_pairs;
  for (const OutputSummary& head : o.heads) line.heads.push_back(to_content(head));
  return line;
}

// What is walked when, so that a journal is only taken up by the same walk.
std::string text_of(const UnitPlan& units, const PointPlan& plan, int walks, int64_t queries) {
  std::string text = concat(canonical_params_json(plan.point.params), "; ", walks, " walks of ",
                            units.units.size(), " units of ", plan.batches_at_once,
                            " sequences; share ", plan.share, "; ", queries, " samples; ranks");
  std::set<Rank> ranks;
  for (const WalkUnit& unit : units.units) ranks.insert(unit.rank);
  if (int(ranks.size()) == plan.point.params.ranks) return text + " all";
  for (Rank r : ranks) text += concat(" ", r);
  return text;
}

class Walker {
 public:
  Walker(const PointPlan& plan, const RunnerOptions& options, const VirtualRun& run)
      : plan_(plan),
        p_(plan.point.params),
        options_(options),
        run_(run),
        units_(plan_units(plan, run)),
        walks_(int(options.measure.warmup + options.measure.min_samples)),
        kernel_(make_kernel(p_.kernel)),
        worker_(make_cpu_row_worker()),
        walk_(
            p_.problem, [this](int64_t batches) { return schedule_for(batches); }, *kernel_,
            *worker_, p_.threads, ledger_),
        sharded_(make_schedule(p_).sharded),
        samples_(choose_samples(sharded_, options.check.sampled_queries / 2)) {
    if (!run.directory.empty()) {
      const auto path =
          std::filesystem::path(run.directory) / concat("shards-", plan.point.id, ".jsonl");
      journal_ = std::make_unique<ShardJournal>(
          path.string(), plan.point.id,
          text_of(units_, plan, walks_, options.check.sampled_queries));
      lines_ = journal_->lines();
      resumed_ = !lines_.empty();
    }
  }

  // False: stopped early.
  bool walk_all() {
    std::set<std::tuple<int, Rank, int64_t>> done;
    for (const ShardLine& l : lines_) done.insert({l.walk, l.rank, l.first_batch});
    const double begin = steady_seconds();
    double flops = 0;
    for (size_t i = 0; i < units_.units.size(); ++i)
      for (int w = 0; w < walks_; ++w)
        flops += done.count(key(w, units_.units[i])) == 0 ? units_.accounts[i].flops : 0;
    const double todo = flops;
    double tokens = 0;
    for (int w = 0; w < walks_; ++w)
      for (size_t i = 0; i < units_.units.size(); ++i) {
        const WalkUnit& unit = units_.units[i];
        if (done.count(key(w, unit)) > 0) continue;
        if (run_.stop && run_.stop()) return false;
        ShardLine line = to_line(run_unit(unit), w, ledger_);
        line.kernel_flops_per_s = kernel_rate();
        if (journal_) journal_->append(line);
        lines_.push_back(std::move(line));
        flops -= units_.accounts[i].flops;
        tokens += double(sharded_.layout.shard(unit.rank).tokens() * unit.batches);
        report(steady_seconds() - begin, todo, flops, tokens);
      }
    return true;
  }

  void fill(PointRecord& record) const;

 private:
  static std::tuple<int, Rank, int64_t> key(int walk, const WalkUnit& unit) {
    return {walk, unit.rank, unit.first_batch};
  }

  Schedule schedule_for(int64_t batches) const {
    PointParams part = p_;
    part.problem.batch = batches;
    return make_schedule(part);
  }

  ShardOutcome run_unit(const WalkUnit& unit) {
    if (plan_.share < 1) return walk_.run_share(unit, units_.unit_share);
    const int64_t each = ceil_div(options_.check.sampled_queries, int64_t(units_.units.size()));
    return walk_.run(unit, choose_shard_samples(sharded_, unit.rank, unit.first_batch, unit.batches,
                                                samples_, each));
  }

  // Beside the walk, in the same conditions: from time to time, and once at least.
  double kernel_rate() {
    const double now = steady_seconds();
    if (now < next_rate_s_ || plan_.share < 1) return 0;
    next_rate_s_ = now + kSecondsPerRate;
    const AttendOptions options{.head_dim = p_.problem.head_dim, .dtype = p_.problem.dtype};
    return measure_attend_rate(*kernel_, options, p_.threads);
  }

  void report(double elapsed, double todo, double left, double tokens) const {
    if (!run_.progress) return;
    const double units = double(units_.units.size()) * walks_;
    run_.progress({.units_done = int64_t(lines_.size()),
                   .units = int64_t(units),
                   .share_done = 1 - left / std::max(1.0, units_.flops * walks_),
                   .tokens_per_s = tokens / std::max(elapsed, 1e-9),
                   .left_s = todo > left ? elapsed * left / (todo - left) : 0});
  }

  double total(const char* what, int walk = -1) const {
    double sum = 0;
    for (const ShardLine& l : lines_)
      if (walk < 0 || l.walk == walk) sum += l.seconds.at(what);
    return sum;
  }
  int timed() const { return walks_ - int(options_.measure.warmup); }
  double mean_per_walk(const char* what) const {
    double sum = 0;
    for (int w = int(options_.measure.warmup); w < walks_; ++w) sum += total(what, w);
    return sum / timed();
  }
  void fill_timing(PointRecord& record) const;
  void fill_replayed(PointRecord& record) const;
  void fill_content(PointRecord& record) const;
  void fill_memory(PointRecord& record) const;
  void fill_metrics(PointRecord& record) const;

  const PointPlan& plan_;
  const PointParams& p_;
  const RunnerOptions& options_;
  const VirtualRun& run_;
  UnitPlan units_;
  int walks_;
  std::unique_ptr<AttentionKernel> kernel_;
  std::unique_ptr<RowWorker> worker_;
  MemoryLedger ledger_;
  VirtualWalk walk_;
  ShardedProblem sharded_;
  std::vector<QuerySample> samples_;
  std::unique_ptr<ShardJournal> journal_;
  std::vector<ShardLine> lines_;
  bool resumed_ = false;
  double next_rate_s_ = 0;
};

void fail(PointRecord& record, const std::string& reason) {
  record.status = PointStatus::kCheckFailed;
  if (record.reason.empty()) record.reason = reason;
}

// A walk's time is the sum over ranks: they run one after another. With a share, each unit stands
// for those left out.
void Walker::fill_timing(PointRecord& record) const {
  const double scale = plan_.share < 1 ? units_.all_flops / units_.flops : 1;
  std::vector<double> samples;
  for (int w = int(options_.measure.warmup); w < walks_; ++w)
    samples.push_back(total("forward", w) * scale);
  set_timing(record, samples, int(options_.measure.warmup));
  record.timing.reduction = "sum";
  record.phases.merge_s = mean_per_walk("merge") * scale;
  record.phases.compute_s = record.timing.median_s - record.phases.merge_s;
  std::map<Rank, std::vector<double>> of_rank;  // per walk
  for (const ShardLine& l : lines_) {
    auto& times = of_rank[l.rank];
    times.resize(size_t(walks_));
    times[size_t(l.walk)] += l.seconds.at("forward");
  }
  for (auto& [rank, times] : of_rank) {
    times.erase(times.begin(), times.begin() + options_.measure.warmup);
    record.per_rank.push_back({rank, median(times)});
  }
}

// One rank's forward pass is what a cluster of such devices would take for its compute: the slowest
// replayed rank decides, and what its messages cost beside it comes from latency and bandwidth.
void Walker::fill_replayed(PointRecord& record) const {
  record.source = Source::kReplayed;
  double slowest = 0;
  for (const RankRecord& r : record.per_rank) slowest = std::max(slowest, r.median_s);
  double communication = 0;
  for (const RankAccount& a : units_.accounts)
    communication = std::max(
        communication, run_.config.latency_s.value_or(0) * double(a.messages_sent) +
                           double(a.bytes_received) / run_.config.bytes_per_s.value_or(INFINITY));
  communication *= double(units_.units.size()) / double(run_.replay.size());
  const bool modelled = run_.config.bytes_per_s.has_value();
  set_timing(record, {slowest + (modelled ? communication : 0)}, int(options_.measure.warmup));
  record.timing.reduction = "max";
  record.phases.compute_s = slowest;
  if (modelled)
    record.phases.communication_s = record.phases.exposed_communication_s = communication;
  record.metrics["communication_modelled"] = modelled ? 1 : 0;
  record.metrics["replayed_ranks"] = double(run_.replay.size());
}

void Walker::fill_content(PointRecord& record) const {
  ContentRecord all;
  SampleErrors errors;
  all.min = INFINITY, all.max = -INFINITY;
  for (const ShardLine& l : lines_) {
    if (l.walk != walks_ - 1) continue;
    all.input_digest += l.input_digest;
    errors.add({l.queries, l.difference, l.norm, l.worst_row, l.worst_lse});
    for (const ContentRecord& h : l.heads) {
      all.output_digest += h.output_digest;
      all.rows += h.rows;
      all.absent_rows += h.absent_rows;
      all.nan_values += h.nan_values;
      all.sum += h.sum;
      all.sum_squares += h.sum_squares;
      all.lse_sum += h.lse_sum;
      all.min = std::fmin(all.min, h.min);
      all.max = std::fmax(all.max, h.max);
    }
  }
  record.content = all;
  const CheckOutcome outcome = judge(errors, all.nan_values, sharded_, options_.check.tolerance);
  record.check = {.status = outcome.pass ? "pass" : "fail",
                  .reference = "double",
                  .max_rel_error = outcome.max_rel_error,
                  .rel_l2_error = outcome.rel_l2_error,
                  .queries = outcome.queries,
                  .tolerance = outcome.tolerance};
  if (!outcome.pass)
    fail(record,
         concat("the output is wrong: relative L2 error ", outcome.rel_l2_error, ", worst row ",
                outcome.max_rel_error, ", LSE ", outcome.max_lse_error, " (allowed ",
                outcome.tolerance, "), ", outcome.nan_values, " values never written"));
  int64_t rows = 0;
  for (const WalkUnit& unit : units_.units)
    rows += sharded_.layout.shard(unit.rank).tokens() * p_.problem.num_heads * unit.batches;
  if (all.rows != rows)
    fail(record, concat("the walk saw ", all.rows, " rows of output, there are ", rows));
}

void Walker::fill_memory(PointRecord& record) const {
  std::set<Rank> ranks;
  for (const WalkUnit& unit : units_.units) ranks.insert(unit.rank);
  auto by_tag =
      walk_memory_by_tag(p_, plan_.batches_at_once, std::vector<Rank>(ranks.begin(), ranks.end()));
  by_tag["workspace"] = plan_.workspace_bytes;
  int64_t predicted = 0, measured = 0, resident = 0, received = 0, expected = 0;
  for (const auto& [tag, bytes] : by_tag) predicted += bytes;
  for (const ShardLine& l : lines_) {
    measured = std::max(measured, l.held_bytes);
    resident = std::max(resident, l.resident_bytes);
    received += l.received_bytes;
  }
  for (const RankAccount& a : units_.accounts) expected += a.bytes_received * walks_;
  record.memory.measured_peak_bytes = measured;
  record.memory.predicted_peak_bytes = predicted;
  record.memory.by_tag = resumed_ ? by_tag : ledger_.peak_by_tag();
  record.metrics["resident_peak_bytes"] = double(resident);
  record.metrics["received_bytes"] = double(received) / walks_;
  // A resumed walk may have held less in each of its parts.
  if (resumed_ ? measured > predicted : measured != predicted)
    fail(record, concat("measured memory differs from the predicted: ", measured, " and ",
                        predicted, " bytes"));
  if (plan_.share >= 1 && received != expected)
    fail(record, concat("the walk made ", received, " bytes of messages, predicted ", expected));
}

void Walker::fill_metrics(PointRecord& record) const {
  auto& m = record.metrics;
  for (const char* what : {"bind", "poison", "generate", "receive", "attend", "select", "merge",
                           "summarize", "check", "wall"})
    m[concat("walk_", what, "_s")] = mean_per_walk(what);
  const double attend = m["walk_attend_s"];
  m["walk_beside_attends_share"] = attend > 0 ? (m["walk_wall_s"] - attend) / attend : 0;
  m["walk_units"] = double(units_.units.size());
  m["walk_batches_at_once"] = double(plan_.batches_at_once);
  if (plan_.share < 1) {
    double pairs = 0;
    for (size_t i = 0; i < units_.units.size(); ++i)
      pairs += units_.accounts[i].flops * lines_[i].attended_share;
    m["measured_share"] = pairs / units_.all_flops;
    m["measured_s"] = mean_per_walk("wall");
    return;
  }
  m["attend_flops_per_s"] = attend > 0 ? units_.flops / attend : 0;
  std::vector<double> rates;
  for (const ShardLine& l : lines_)
    if (l.kernel_flops_per_s > 0) rates.push_back(l.kernel_flops_per_s);
  m["kernel_flops_per_s"] = median(rates);
  m["attend_share_of_kernel"] = m["attend_flops_per_s"] / m["kernel_flops_per_s"];
}

void Walker::fill(PointRecord& record) const {
  fill_timing(record);
  fill_memory(record);
  if (plan_.share < 1) {
    record.source = Source::kExtrapolated;
  } else {
    fill_content(record);
  }
  if (!run_.replay.empty()) fill_replayed(record);
  fill_metrics(record);
  record.comm.predicted_bytes_per_rank = plan_.account.max_bytes_sent;
  record.comm.predicted_messages_per_rank = plan_.account.max_messages_sent;
}

}  // namespace

std::optional<PointRecord> run_virtual_point(const PointPlan& plan, const RunnerOptions& options,
                                             const VirtualRun& run) {
  const PointParams& p = plan.point.params;
  for (Rank r : run.replay)
    if (r >= p.ranks)
      throw UsageError(concat("--replay ", r, ": this point has the ranks 0 to ", p.ranks - 1));
  PointRecord record = make_record(plan.point);
  record_work(record, plan, options.peak_flops_per_thread);
  record_depth(record, p);
  if (p.ranks <= kMaxCheckedRanks) require_correct(make_schedule(p));
  try {
    Walker walker(plan, options, run);
    if (!walker.walk_all()) return std::nullopt;
    walker.fill(record);
  } catch (const std::bad_alloc&) {
    record.status = PointStatus::kOom;
    record.reason = concat("the machine refused ", format_bytes(double(plan.memory_bytes())));
    return record;
  }
  record_work(record, plan, options.peak_flops_per_thread * (run.replay.empty() ? 1 : p.ranks));
  return record;
}

std::vector<Rank> parse_ranks(const std::string& text) {
  std::vector<Rank> ranks;
  std::istringstream list(text);
  for (std::string item; std::getline(list, item, ',');) {
    const bool digits =
        !item.empty() && item.size() < 9 &&
        std::all_of(item.begin(), item.end(), [](char c) { return c >= '0' && c <= '9'; });
    if (!digits)
      throw UsageError(concat("'", text, "' is no list of ranks\n  hint: e.g. --replay 0,17,4095"));
    if (std::find(ranks.begin(), ranks.end(), std::stoi(item)) == ranks.end())
      ranks.push_back(std::stoi(item));
  }
  std::sort(ranks.begin(), ranks.end());
  return ranks;
}

}  // namespace longnet
