#include "run/simulate_point.h"

#include <algorithm>
#include <map>
#include <set>

#include "core/check.h"
#include "io/environment.h"
#include "io/expand.h"
#include "io/record_table.h"
#include "json/json_tree.h"
#include "run/fill_record.h"
#include "run/sweep.h"
#include "schedule/registry.h"
#include "simulate/collective_times.h"
#include "simulate/cost_model.h"

namespace longnet {
namespace {

constexpr int kRanksInRecord = 64;
constexpr int64_t kDepthSteps = int64_t{1} << 24;  // 0.1 s: simulations have many points

CollectivePlan plan_of(const PointParams& p, const ClusterSpec& cluster) {
  CollectivePlan plan = plan_collectives(cluster, p.collective, p.program_ranks());
  // Programs without gathers need not know in which nodes a gather lies: more ranks are alike.
  if (find_algorithm(p.algorithm).collectives != CollectiveUse::kAllGather &&
      !has_layers(p.scope)) {  // models gather sums and weights
    plan.all_gather_formula.clear();
    plan.reduce_scatter_formula.clear();
  }
  if (p.node_size > 0) plan.lowering.node_size = p.node_size;
  return plan;
}

// Skips `point` when `work` on it is refused, as a program of too many ops or links.
template <class Work>
void skip_if_refused(Point& point, Work work) {
  try {
    work();
  } catch (const UsageError& e) {
    set_status(point, PointStatus::kSkippedUnsupported, e.what());
  }
}

// Skips `point` when the cluster cannot run it.
void skip_unsupported(Point& point, const SimulatePoint& options) {
  const ClusterSpec& cluster = options.cluster;
  const PointParams& p = point.params;
  std::string why = why_no_program(p);
  if (why.empty()) why = CostModel::why_no_speed(cluster, p.problem, p.pass, p.scope);
  if (why.empty() && p.ranks > cluster.num_gpus())
    why = concat("needs ", p.ranks, " GPUs, ", cluster.name, " has ", cluster.num_gpus());
  // A native gather may be a formula too; other algorithms never come to it.
  if (why.empty() && find_algorithm(p.algorithm).collectives == CollectiveUse::kAllGather)
    why = why_not_formula(cluster, plan_of(p, cluster).all_gather_formula);
  if (why.empty()) {
    why = why_no_straggler(options.what_if.straggler, p);
    if (!why.empty()) why = "what if straggler: " + why;
  }
  if (why.empty() && !is_formula(p.collective))
    why = why_not_collective(one_layer_schedule(p), p.collective, plan_of(p, cluster).lowering);
  if (why.empty()) return;
  set_status(point, PointStatus::kSkippedUnsupported, why);
}

// Groups of ranks that share a sequence are closed rings: with several of them no rank has a twin
// in its own.
Twins twins_of(const PointParams& p, const ClusterSpec& cluster) {
  const bool one_group = p.program_ranks() == p.group_ranks() * p.head_groups;
  const int period =
      p.head_groups *
      (one_group ? find_algorithm(p.algorithm).period(sharded_problem(p)) : p.group_ranks());
  return lowered_twins(unlowered_schedule(p), period, plan_of(p, cluster), cluster);
}

int64_t slots_of(const PointParams& p, const ClusterSpec& cluster) {
  return predicted_slots(lower_collectives(unlowered_schedule(p), plan_of(p, cluster).lowering),
                         max_accounted(p), twins_of(p, cluster).period);
}

// A program of a rank must be made to know its slots: of very many ranks that alone takes long.
bool fits(const PointParams& p, const ClusterSpec& cluster, int64_t limit) {
  if (!why_no_program(p).empty()) return false;
  return p.ranks <= cluster.num_gpus() && least_slots(p) <= limit && slots_of(p, cluster) <= limit;
}

// Skips `point` when its slots do not fit the device. Returns their bytes.
int64_t skip_too_large(Point& point, const SimulatePoint& options) {
  const int64_t limit =
      int64_t(options.cluster.device.memory_bytes.value * options.memory_fraction);
  const int64_t needed = slots_of(point.params, options.cluster);
  if (needed > limit)
    skip_for_memory(
        point, needed, limit, concat(" on ", options.cluster.device.name),
        [&](const PointParams& changed) { return fits(changed, options.cluster, limit); });
  return needed;
}

void set_account(PointRecord& r, const ProgramSet& programs) {
  const PointParams& p = r.params;
  const auto largest =
      std::ranges::max_element(programs.classes, {}, &CompactProgram::memory_bytes);
  int64_t bytes = 0, messages = 0;
  double most_pairs = 0, pairs = 0, gemm_flops = 0;
  for (const CompactProgram& c : programs.classes) {
    gemm_flops += c.gemm_flops * (programs.ranks / programs.period);
    bytes = std::max(bytes, c.bytes_sent);
    messages = std::max(messages, c.messages_sent);
    most_pairs = std::max(most_pairs, c.pairs);
    pairs += c.pairs * (programs.ranks / programs.period);
  }
  set_predicted_traffic(r, bytes, messages);
  set_memory(r, largest->memory_bytes(), largest->memory_by_tag);
  set_work(
      r, double(p.ranks) / p.program_ranks() * (pair_flops(pairs, p.problem.head_dim) + gemm_flops),
      paper_macs(p.problem, p.pattern),
      most_pairs > 0 ? std::min(1.0, pairs / (most_pairs * programs.ranks)) : 1);
}

// Parts of the rank that computes most: they do not overlap and add up to the makespan. Packs
// take turns with attends where a rank has one lane; on a lane of their own they hide behind them,
// and what does not hide is waited for like communication. `alone_s`: communication without them.
void set_simulated_phases(PointRecord& r, const SimulatedRun& run, ExecutionKind execution,
                          double alone_s) {
  double busiest = -1, idle = 0;
  for (const SimulatedRank& rank : run.ranks) {
    const double compute =
        rank.compute_s() + (execution == ExecutionKind::kInOrder ? rank.pack_s : 0);
    const double busy = compute + rank.merge_s;
    idle = std::max(idle, run.makespan_s - busy);
    if (busy <= busiest) continue;
    busiest = busy;
    set_phases(r, compute, rank.merge_s);
    if (has_layers(r.params.scope))
      set_model_phases(r, rank.gemm_s, rank.row_wise_s, rank.update_s);
  }
  r.metrics["idle_s"] = idle;  // the rank that waits most
  set_ablations(r, {run.makespan_s, busiest, alone_s});
}

std::string_view track_of(OpKind kind) {
  return kind == OpKind::kSend         ? "send"
         : kind == OpKind::kRecv       ? "receive"
         : kind == OpKind::kCollective ? "communication"
         : kind == OpKind::kPack       ? "copy"
                                       : "compute";
}

// The timeline in the order of its posts, each item with a track on which nothing else happens from
// its post to its end: "send", and "send 2" for what is posted while the first is under way.
struct TrackedItem {
  const TimelineItem* item;
  std::string track;
  int step = 0;  // attends of the same branch that its rank did before
};
std::vector<TrackedItem> on_tracks(const SimulatedRun& run) {
  std::vector<TrackedItem> out;
  for (const TimelineItem& item : run.timeline) out.push_back({&item, {}});
  std::ranges::stable_sort(
      out, {}, [](const TrackedItem& t) { return std::pair(t.item->posted_s, t.item->end_s); });
  std::map<std::pair<Rank, std::string_view>, std::vector<double>> ends;  // lanes of each track
  std::map<std::pair<Rank, int>, int> attends;                            // by branch
  for (TrackedItem& t : out) {
    if (t.item->branch >= 0) t.step = attends[{t.item->rank, t.item->branch}]++;
    const std::string_view name = track_of(t.item->kind);
    auto& until = ends[{t.item->rank, name}];
    const auto free =
        std::ranges::find_if(until, [&](double end) { return end <= t.item->posted_s; });
    const auto number = free - until.begin();
    if (free == until.end())
      until.push_back(t.item->end_s);
    else
      *free = t.item->end_s;
    t.track = number == 0 ? std::string(name) : concat(name, " ", number + 1);
  }
  return out;
}

void set_simulated_timeline(PointRecord& r, const SimulatedRun& run) {
  if (r.params.program_ranks() > kTimelineRanks ||
      run.timeline.size() > size_t(kTimelineOps) * run.ranks.size())
    return;
  const bool branches = r.params.pattern.branches.size() > 1;
  for (const auto& [item, track, step] : on_tracks(run)) {
    const std::string detail = item->branch >= 0 && branches ? concat("branch ", item->branch)
                               : item->branch >= 0           ? concat("step ", step)
                               : item->peer >= 0             ? concat("rank ", item->peer)
                                                             : "";
    if (item->begin_s > item->posted_s)
      r.timeline.push_back({item->rank, track, "wait", item->posted_s, item->begin_s, detail});
    r.timeline.push_back({item->rank, track, std::string(to_string(item->kind)), item->begin_s,
                          item->end_s, detail});
  }
}

void set_metrics(SimulatedPoint& out, const SimulatePoint& options, const ProgramSet& programs) {
  auto& m = out.record.metrics;
  const Guess guess = std::ranges::max(programs.classes, {}, &CompactProgram::guess).guess;
  if (guess != Guess::kNone) m[kBeyondTable] = double(guess);
  if (options.cluster.error.value > 0) m["error"] = options.cluster.error.value;
  m["simulated_messages"] = double(out.messages);
  m["shared_messages"] = double(out.shared_messages);
  m["simulated_ranks"] = double(out.run.ranks.size());
  m["simulation_s"] = out.simulation_s;
  if (out.messages > 0) m["messages_per_s"] = double(out.messages) / out.simulation_s;
  m["program_classes"] = double(programs.classes.size());
  m["gpus_per_node"] = options.cluster.gpus_per_node.value;
  for (const auto& [name, value] : options.what_if.values()) m["what_if_" + name] = value;
}

// The interval of out.run by those of the other latencies, unless one set was asked for.
// `simulated`: runs the programs once more.
void set_band(SimulatedPoint& out, const SimulatePoint& options, SimulateOptions how,
              const auto& simulated) {
  const double makespan = out.run.makespan_s;
  MedianInterval band{.low = makespan, .high = makespan, .level = kNotMeasured, .median = makespan};
  const AlphaSet first = how.alpha;
  if (!options.alpha)
    for (const AlphaSet set : kAlphaSets) {
      how.alpha = set;
      const double s = set == first ? makespan : simulated(how).makespan_s;
      out.record.metrics[concat("makespan_", to_string(set), "_s")] = s;
      band.low = std::min(band.low, s);
      band.high = std::max(band.high, s);
    }
  const double error = options.cluster.error.value;
  band.low /= 1 + error;
  band.high *= 1 + error;
  set_interval(out.record, band, makespan);
  const PointParams& p = out.record.params;
  const auto peak = options.cluster.device.peak_flops.find(p.problem.dtype);
  if (peak != options.cluster.device.peak_flops.end())
    set_share_of_peak(out.record, {out.record.work.flops_per_s}, {peak->second.value * p.ranks});
}

// Fills all of `out` but what make_record() does. Throws UsageError beyond options.most_cpu_s.
void simulate_programs(SimulatedPoint& out, const ProgramSet& programs, const Topology& links,
                       const SimulatePoint& options, bool timeline) {
  const PointParams& p = out.record.params;
  const bool small =
      p.program_ranks() <= kTimelineRanks && programs.classes[0].num_ops() <= kTimelineOps;
  SimulateOptions how{.alpha = options.alpha.value_or(AlphaSet::kNcclLl),
                      .collapse = options.collapse && !timeline && !small,
                      .straggler = options.what_if.straggler,
                      .timeline = timeline || small,
                      .most_cpu_s = options.most_cpu_s};
  const auto simulated = [&](const SimulateOptions& by) {
    SimulatedRun run = simulate(programs, links, options.cluster, by);
    out.simulation_s += run.cpu_s;
    out.messages += run.messages;
    out.shared_messages += run.shared_messages;
    return run;
  };
  out.run = simulated(how);
  set_account(out.record, programs);
  how.timeline = false;
  set_band(out, options, how, simulated);
  how.without_compute = true;
  const bool alone = options.communication_alone && p.program_ranks() > 1;
  const double alone_s = alone ? simulated(how).makespan_s : kNotMeasured;
  set_simulated_phases(out.record, out.run, options.cluster.execution, alone_s);
  set_simulated_timeline(out.record, out.run);
  for (size_t r = 0; r < out.run.ranks.size() && p.program_ranks() <= kRanksInRecord; ++r)
    out.record.per_rank.push_back({.rank = int(r), .median_s = out.run.ranks[r].finish_s});
  set_metrics(out, options, programs);
  set_depth(out.record, p, {.max_steps = kDepthSteps});
}

}  // namespace

std::string why_no_straggler(const Straggler& s, const PointParams& p) {
  if (s.rank >= p.ranks) return concat("there is no rank ", s.rank, " of ", p.ranks);
  if (s.count > p.ranks) return concat(s.count, " slow ranks of ", p.ranks);
  if (p.program_ranks() == p.ranks || !s.exists() || (s.count == 1 && s.rank < p.group_ranks()))
    return "";
  return concat("of ", p.replicas, " replicas the first is simulated, ranks 0 to ",
                p.group_ranks() - 1, ": name one of them");
}

std::vector<Point> on_cluster(const std::vector<Point>& points, const SimulatePoint& options) {
  std::vector<Point> out;
  std::set<std::string> seen;
  for (Point point : points) {
    point.params.mode = Mode::kSimulated;
    point.params.transport.clear();
    point.params.kernel = "modelled";
    const std::string changed = options.what_if.text();
    point.params.cluster = options.cluster.name + (changed.empty() ? "" : " " + changed);
    if (options.alpha) point.params.cluster += concat(" alpha=", to_string(*options.alpha));
    point.params.threads = std::max(1, point.params.threads);
    point.id = point_id(point.params);
    if (!seen.insert(point.id).second) continue;  // kernels differed
    if (point.status == PointStatus::kOk)
      skip_if_refused(point, [&] { skip_unsupported(point, options); });
    out.push_back(std::move(point));
  }
  return out;
}

std::vector<Point> on_cluster(const Config& config, const SimulatePoint& options,
                              const std::string& filter) {
  return on_cluster(read_points(config, {.world_size = options.cluster.num_gpus(),
                                         .filter = filter,
                                         .mode = Mode::kSimulated,
                                         .transport = ""}),
                    options);
}

SimulatedPoint simulate_point(const Point& given, const SimulatePoint& options, bool timeline) {
  Point point = given;
  const PointParams& p = point.params;
  SimulatedPoint out;
  skip_if_refused(point, [&] {
    const int64_t memory_bytes =
        point.status == PointStatus::kOk ? skip_too_large(point, options) : 0;
    out.record = make_record(point, Source::kSimulated);
    if (point.status == PointStatus::kSkippedMemory) set_memory(out.record, memory_bytes);
    if (point.status != PointStatus::kOk) return;
    const Topology links(options.cluster, p.program_ranks());
    const ProgramSet programs =
        compile(unlowered_schedule(p), twins_of(p, options.cluster), options.cluster,
                plan_of(p, options.cluster), options.max_program_bytes);
    simulate_programs(out, programs, links, options, timeline);
    out.program = fingerprint(programs);
  });
  if (point.status == PointStatus::kSkippedUnsupported)
    out = {.record = make_record(point, Source::kSimulated)};
  return out;
}

int simulation_threads(const SimulatePoint& options) {
  const Environment here = capture_environment();
  const int64_t fitting = here.memory_limit_bytes / (2 * options.max_program_bytes);
  return int(std::clamp<int64_t>(fitting, 1, std::max(1, here.usable_threads)));
}

std::string chrome_trace(const SimulatedRun& run, const std::string& title) {
  JsonNode events = JsonNode::array();
  const auto name = [&](const char* what, Rank rank, int64_t track, const std::string& text) {
    events.push(JsonNode::object({{"name", what},
                                  {"ph", "M"},
                                  {"pid", rank},
                                  {"tid", track},
                                  {"args", JsonNode::object({{"name", text}})}}));
  };
  std::map<std::pair<Rank, std::string>, int64_t> numbers;
  const auto number_of = [&](Rank rank, const std::string& track) {
    const auto [at, is_new] = numbers.try_emplace({rank, track}, int64_t(numbers.size()) + 1);
    if (is_new) {
      name("process_name", rank, at->second, concat("rank ", rank));
      name("thread_name", rank, at->second, track);
    }
    return at->second;
  };
  for (const auto& [item, track, step] : on_tracks(run)) {
    const int64_t number = number_of(item->rank, track);
    const auto add = [&](const std::string& what, double begin, double end) {
      JsonNode e = JsonNode::object({{"name", what},
                                     {"ph", "X"},
                                     {"pid", item->rank},
                                     {"tid", number},
                                     {"ts", begin * 1e6},
                                     {"dur", (end - begin) * 1e6}});
      JsonNode args = JsonNode::object();
      if (item->peer >= 0) args.set("peer", item->peer).set("bytes", item->bytes);
      if (item->branch >= 0) args.set("branch", item->branch).set("step", step);
      if (!args.items.empty()) e.set("args", args);
      events.push(e);
    };
    if (item->begin_s > item->posted_s) add("wait", item->posted_s, item->begin_s);
    add(std::string(to_string(item->kind)), item->begin_s, item->end_s);
  }
  return dump_json(JsonNode::object(
      {{"displayTimeUnit", "ns"},
       {"otherData", JsonNode::object({{"title", title}, {"makespan_s", run.makespan_s}})},
       {"traceEvents", events}}));
}

}  // namespace longnet
