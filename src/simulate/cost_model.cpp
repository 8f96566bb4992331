#include "simulate/cost_model.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "core/check.h"
#include "schedule/accounting.h"

namespace longnet {
namespace {

constexpr double kOneBlock = 1e18;  // rows of a block that holds all queries

// The value at x of the line through (x0, y0) and (x1, y1); y0 when x0 = x1.
double interpolate(double x, double x0, double y0, double x1, double y1) {
  return x1 == x0 ? y0 : y0 + (y1 - y0) * (x - x0) / (x1 - x0);
}

// Runs of queries of one head: the executor starts a new block with each owner, range and segment.
double count_runs(const ShardedProblem& s, const Attend& op) {
  const BranchRows rows(s.pattern, op.branch, s.problem);
  double runs = 0;
  for_each_query_range(s, op, [&](const TokenRange& q) {
    runs += double(rows.segment_of(q.last()) - rows.segment_of(q.first) + 1);
  });
  return runs;
}

// The device's model for `p`, interpolated in head_dim and held at the ends; `masked` chooses among
// causal ones, `backward` among those of backward passes. None when there is none for its dtype.
std::optional<AttendModel> find_attend_model(const DeviceSpec& device, const AttentionProblem& p,
                                             bool masked, bool backward) {
  const double d = double(p.head_dim);
  const AttendModel *below = nullptr, *above = nullptr;
  for (const AttendModel& m : device.attend_model) {
    if (m.dtype != p.dtype || m.causal != masked || m.backward != backward) continue;
    if (m.head_dim <= d && (!below || m.head_dim > below->head_dim)) below = &m;
    if (m.head_dim >= d && (!above || m.head_dim < above->head_dim)) above = &m;
  }
  if (!below) below = above;
  if (!above) above = below;
  if (!below) return std::nullopt;
  AttendModel model = *below;
  for (const auto part :
       {&AttendModel::block_s, &AttendModel::query_s, &AttendModel::key_s, &AttendModel::pair_s})
    model.*part = interpolate(d, below->head_dim, below->*part, above->head_dim, above->*part);
  return model;
}

// Seconds, of one protocol of NCCL 2.28's ring: baseLatencies and hwLatencies of
// src/graph/tuning.cc.
struct Protocol {
  double base, intra, inter, overhead;
  double exposed_inter;        // where each rank has a node of its own: that of its trees
  double share;                // usable part of the bandwidth (ncclTopoTuneModel)
  std::array<double, 3> most;  // bytes per second on one, two and more nodes; 0: any
};
// getNetOverhead: 1 us a step with Intel's CPUs (2 with AMD's), three times that for Simple.
// llMaxBws: Intel's on two and more nodes; on one the GPU's, which its file has.
constexpr Protocol kLl{6.6e-6, 0.6e-6, 2.7e-6, 1e-6, 5e-6, 0.5, {0, 39e9, 20.4e9}};
constexpr Protocol kLl128{14e-6, 1.9e-6, 4e-6, 1e-6, 8.5e-6, 0.92, {}};
constexpr Protocol kSimple{8.4e-6, 3.4e-6, 14e-6, 3e-6, 14e-6, 1, {}};

double seconds(const Protocol& p, const GatherShape& s, double bandwidth, double latency) {
  const bool alone = s.members == s.nodes;
  bandwidth *= p.share;
  if (const double most = p.most[size_t(std::min(s.nodes, 3) - 1)]; most > 0)
    bandwidth = std::min(bandwidth, most);
  const double intra = s.nodes > 1 ? std::max(p.intra, p.overhead) : p.intra;
  return latency * (p.base + (s.members - s.nodes) * intra +
                    (s.nodes - 1) * (alone ? p.exposed_inter : p.inter)) +
         s.bytes * (s.members - 1) / s.members / bandwidth;
}

}  // namespace

void cut_into_blocks(AttendCounts& c, double runs, double block_rows) {
  const double per_run = c.queries / runs;
  c.blocks = runs * std::ceil(std::max(1.0, per_run) / block_rows);
  const double per_block = c.queries / c.blocks;
  double keys = c.pairs / c.queries;  // seen by one block
  // A block needs the keys that its last query sees: half a block more than the mean.
  if (c.masked) keys = std::min(c.most_keys, keys + (per_block - 1) / 2);
  c.key_rows = c.blocks * keys;
}

AttendCounts count_attend(const ShardedProblem& s, const Attend& op, double block_rows) {
  AttendCounts c{.queries = attended_queries(s, op), .pairs = attended_pairs(s, op)};
  if (c.pairs == 0) return {};
  c.most_keys = c.pairs / c.queries;
  if (s.problem.causal) {
    ShardedProblem unmasked = s;
    unmasked.problem.causal = false;
    c.most_keys = attended_pairs(unmasked, op) / c.queries;
    c.masked = c.pairs < c.most_keys * c.queries;
  }
  // Runs of all (sequence, head) pairs; heads whose offset selects nothing make this an average.
  cut_into_blocks(c, count_runs(s, op) * double(op.heads.count) * double(s.problem.batch),
                  block_rows);
  return c;
}

double attend_seconds(const AttendModel& m, const AttendCounts& c) {
  return c.blocks * m.block_s + c.queries * m.query_s + c.key_rows * m.key_s + c.pairs * m.pair_s;
}

double CostModel::Curve::at(double keys) const {
  const double x = 1 / std::max(1.0, keys);
  if (points.size() == 1) return points[0].second;
  size_t i = 1;  // points by ascending 1 / rows
  while (i + 1 < points.size() && points[i].first < x) ++i;
  const auto &longer = points[i - 1], &shorter = points[i];
  // Measured speeds that fall with length are held at the ends.
  if (shorter.second < longer.second)
    return interpolate(std::clamp(x, longer.first, shorter.first), longer.first, longer.second,
                       shorter.first, shorter.second);
  return interpolate(x, longer.first, longer.second, shorter.first, shorter.second);
}

double CostModel::read(const Table& table, double keys, double d) {
  const Curve &first = table.front(), &last = table.back();
  if (d >= last.head_dim) return last.at(keys) * d / last.head_dim;
  size_t i = 1;
  while (i + 1 < table.size() && table[i].head_dim < d) ++i;
  const double line = table.size() == 1
                          ? 0
                          : interpolate(d, table[i - 1].head_dim, table[i - 1].at(keys),
                                        table[i].head_dim, table[i].at(keys));
  // Small heads are no faster per FLOP than the smallest one of the table.
  return d < first.head_dim ? std::max(line, first.at(keys) * d / first.head_dim) : line;
}

std::string CostModel::why_no_speed(const ClusterSpec& c, const AttentionProblem& p, Pass pass,
                                    Scope scope) {
  const DType other = p.dtype == DType::kFloat32 ? DType::kBFloat16 : DType::kFloat32;
  const std::string or_other = concat(", or --set model.dtype=", to_string(other));
  if (has_layers(scope) && !c.device.gemm_flops.contains(p.dtype))
    return concat(c.name, " has no speed of products in ", to_string(p.dtype),
                  "; add device.gemm_flops.", to_string(p.dtype),
                  c.device.gemm_flops.contains(other) ? or_other : "");
  const auto has_speed = [&](bool backward, DType dtype) {
    return std::ranges::any_of(c.device.attend, [&](const KernelRow& row) {
      return row.prices(c.device.kernel, dtype, backward) && row.causal == p.causal;
    });
  };
  const std::string what = concat(p.causal ? "causal " : "", "attention in ", to_string(p.dtype));
  // Statistics of a branch alone are those of a forward pass.
  if (!has_speed(false, p.dtype))
    return concat(c.name, " has no speed of ", what, "; add rows to device.attend",
                  has_speed(false, other) ? or_other : "");
  if (!has_backward(pass) || has_speed(true, p.dtype)) return {};
  return concat(c.name, " has no speed of the backward pass of ", what,
                c.device.kernel.empty() ? "" : " with kernel " + c.device.kernel,
                "; add rows with \"backward\": true to device.attend (lnbench calibrate measures a "
                "CPU's), or leave that pass out with --set sweep.pass=forward");
}

// Longer rows than the table's are read off its line in 1 / rows, which they hardly move along.
bool CostModel::is_beyond_table(const Prices& prices, const AttendCounts& c) const {
  const Table& table = prices.tables[c.masked];
  const double d = double(sharded_.problem.head_dim);
  const auto above = std::ranges::lower_bound(table, d, {}, &Curve::head_dim);
  if (above == table.end() || (above == table.begin() && above->head_dim > d)) return true;
  const auto is_shorter = [&](const Curve& curve) {
    return c.most_keys < (1 - 1e-9) / curve.points.back().first;
  };
  return is_shorter(*above) || (above->head_dim > d && is_shorter(*std::prev(above)));
}

CostModel::CostModel(const ClusterSpec& cluster, const ShardedProblem& sharded)
    : cluster_(cluster), sharded_(sharded), prices_{read_prices(false), read_prices(true)} {
  if (prices_[0].tables[sharded.problem.causal].empty())
    throw UsageError(why_no_speed(cluster, sharded.problem));
  const int all = cluster.num_gpus(), busy = sharded.layout.world_size();
  if (cluster.device.alone_speed.value > 0 && all > 1)
    speed_ = interpolate(std::min(busy, all), 1, cluster.device.alone_speed.value, all, 1);
}

CostModel::Prices CostModel::read_prices(bool backward) const {
  const AttentionProblem& p = sharded_.problem;
  const DeviceSpec& device = cluster_.device;
  Prices out{.backward = backward,
             .models = {find_attend_model(device, p, false, backward),
                        find_attend_model(device, p, true, backward)}};
  for (const KernelRow& row : device.attend) {
    if (!row.prices(device.kernel, p.dtype, backward)) continue;
    Table& table = out.tables[row.causal];
    auto curve = std::ranges::find(table, row.head_dim, &Curve::head_dim);
    if (curve == table.end()) curve = table.insert(table.end(), {row.head_dim, {}});
    curve->points.emplace_back(
        1 / row.rows, pair_flops(backward ? 2.5 : 1.0, int64_t(row.head_dim)) / row.flops_per_s);
  }
  if (out.tables[0].empty()) out.tables[0] = out.tables[1];
  for (Table& table : out.tables) {
    for (Curve& c : table) std::sort(c.points.begin(), c.points.end());
    std::ranges::sort(table, {}, &Curve::head_dim);
  }
  return out;
}

// For an attend that a mask cuts, the table's causal rows give the cost of the triangle (half of
// the keys are seen); between that and all keys, in proportion.
double CostModel::seconds_per_pair(const Prices& prices, const AttendCounts& c) const {
  const double d = double(sharded_.problem.head_dim);
  const double unmasked = read(prices.tables[0], c.most_keys, d);
  if (!c.masked) return unmasked;
  const double seen = c.pairs / c.queries, half = std::max(0.5, seen / c.most_keys);
  double triangle = read(prices.tables[1], std::min(c.most_keys, 2 * seen), d);
  if (prices.backward) triangle = std::max(triangle, unmasked);
  return interpolate(half, 0.5, triangle, 1, unmasked);
}

// Memory is read and written at least for Q, the result and each K and V row that queries see;
// heads that share K and V may read them together. In a backward pass: Q, dO, statistics, K and V
// are read, and gradients in fp32 added to those that are there.
double CostModel::memory_bytes(const Attend& op, const AttendCounts& c, bool backward) const {
  const AttentionProblem& p = sharded_.problem;
  const double d = double(p.head_dim), element = double(dtype_bytes(p.dtype)), row = d * element;
  const double kv_rows = c.key_rows / double(p.num_heads / p.num_kv_heads);
  const double kv_bytes =
      std::min(2 * row * kv_rows, double(view_bytes(sharded_, TensorKind::kKeyValue, op.kv)));
  if (backward) return c.queries * (2 * row + 8 + 8 * d) + kv_bytes * (1 + 8 / element);
  return c.queries * (row + 4.0 * (d + 1)) + kv_bytes;
}

double CostModel::wave_factor(const Attend& op, const AttendCounts& c, bool backward) const {
  const DeviceSpec& device = cluster_.device;
  if (device.fill_rows.value == 0) return 1;
  const auto by_waves_of = [&](double rows) {
    const double waves = rows / device.fill_rows.value;
    return std::ceil(waves) / waves;
  };
  const auto split = device.backward_splits.find(device.kernel);
  if (!backward || split == device.backward_splits.end() ||
      split->second.value == KernelSplit::kQueries)
    return by_waves_of(c.queries);
  const double by_keys = by_waves_of(attended_keys(sharded_, op));
  if (split->second.value == KernelSplit::kKeys) return by_keys;
  return (3 * by_waves_of(c.queries) + 4 * by_keys) / 7;  // products of the two passes
}

CostModel::AttendCost CostModel::attend(const Attend& op, bool backward) const {
  const AttentionProblem& p = sharded_.problem;
  const DeviceSpec& device = cluster_.device;
  const Prices& prices = prices_[backward];
  if (prices.tables[p.causal].empty()) throw UsageError(why_no_speed(cluster_, p, Pass::kBackward));
  const auto& any = prices.models[p.causal];
  const AttendCounts c = count_attend(sharded_, op, any ? any->block_rows : kOneBlock);
  if (any) {
    const AttendModel& model = prices.models[c.masked] ? *prices.models[c.masked] : *any;
    return {attend_seconds(model, c) / speed_ + device.launch_s.value, c.pairs, false};
  }
  if (c.pairs == 0) return {device.launch_s.value, 0, false};
  const double compute = c.pairs * seconds_per_pair(prices, c) * wave_factor(op, c, backward);
  const double memory = memory_bytes(op, c, backward) / device.memory_bandwidth_bytes_per_s.value;
  return {std::max(compute, memory) + device.launch_s.value, c.pairs, is_beyond_table(prices, c)};
}

double CostModel::copy_s(int64_t bytes, const Quantity& speed, double passes) const {
  const DeviceSpec& d = cluster_.device;
  const double bytes_per_s =
      speed.value > 0 ? speed.value : d.memory_bandwidth_bytes_per_s.value / passes;
  return d.launch_s.value + double(bytes) / bytes_per_s;
}

double CostModel::pack_s(int64_t bytes) const {
  return copy_s(bytes, cluster_.device.pack_bytes_per_s, 2);  // read, written
}
double CostModel::pack_bytes_s(int64_t bytes) const {
  return pack_s(bytes) - cluster_.device.launch_s.value;
}
double CostModel::merge_s(int64_t bytes, bool slice) const {
  switch (cluster_.merge) {
    case MergeKind::kKernel:
      return copy_s(bytes, cluster_.device.merge_bytes_per_s, 3);  // two read, one written
    case MergeKind::kFused:  // the output read and written again, no partial
      return copy_s(bytes, {}, 2) - cluster_.device.launch_s.value;
    case MergeKind::kEager:
      break;
  }
  const double eager_bytes = slice ? 46 : 38;  // bytes moved per value of 4 bytes
  constexpr double kEagerOperators = 4;
  return copy_s(bytes, {}, eager_bytes / 4) +
         (kEagerOperators - 1) * cluster_.device.launch_s.value;
}
double CostModel::sum_s(int64_t bytes, int64_t pieces) const {
  const double launch = cluster_.device.launch_s.value;
  const double one_by_one = copy_s(bytes, cluster_.device.sum_bytes_per_s, 3) - launch;
  // Each piece is read; the sum is read and written once, not with each piece.
  return launch + one_by_one * double(pieces + 2) / double(3 * pieces);
}
double CostModel::reset_s(int64_t bytes) const { return copy_s(bytes, {}, 1); }
double CostModel::delta_s(int64_t bytes) const {
  return copy_s(bytes, cluster_.device.delta_bytes_per_s, 1);
}

double CostModel::gemm_s(const Gemm& op, int64_t bytes) const {
  constexpr double kTile = 128;
  const DeviceSpec& d = cluster_.device;
  const auto speed = d.gemm_flops.find(sharded_.problem.dtype);
  if (speed == d.gemm_flops.end())
    throw UsageError(why_no_speed(cluster_, sharded_.problem, Pass::kForward, Scope::kModel));
  const MatrixView& into = op.into[0];
  const double tiles = std::ceil(double(into.rows) / kTile) * std::ceil(double(into.cols) / kTile);
  const double busy = std::min(1.0, tiles / std::max(1.0, d.fill_rows.value / kTile));
  const double compute = gemm_flops(op) / (speed->second.value * busy * speed_);
  if (d.gemm_bytes_per_s.value > 0)
    return d.launch_s.value + compute + double(bytes) / d.gemm_bytes_per_s.value;
  return d.launch_s.value + std::max(compute, double(bytes) / d.memory_bandwidth_bytes_per_s.value);
}
double CostModel::row_wise_s(RowFunction function, int64_t bytes) const {
  const auto& speeds = cluster_.device.row_wise_bytes_per_s;
  const auto speed = speeds.find(function);
  return copy_s(bytes, speed == speeds.end() ? Quantity{} : speed->second, 1);
}
double CostModel::cross_entropy_s(int64_t bytes) const {
  return copy_s(bytes, cluster_.device.cross_entropy_bytes_per_s, 1);
}
double CostModel::update_s(int64_t bytes) const {
  return copy_s(bytes, cluster_.device.update_bytes_per_s, 1);
}

double ring_bandwidth(const ClusterSpec& c, const GatherShape& s) {
  const double port = c.intra.bandwidth_bytes_per_s.value;
  if (s.nodes == 1) return port;
  const double cards = c.inter.bandwidth_bytes_per_s.value * c.inter.ports_per_node.value;
  return s.members == s.nodes ? c.inter.bandwidth_bytes_per_s.value : std::min(port, cards);
}

double multi_channel_ring_s(const ClusterSpec& c, const GatherShape& s, AlphaSet set) {
  if (s.members < 2) return 0;
  const double moved = s.bytes * (s.members - 1) / s.members;
  return (s.members - s.nodes) * c.intra.alpha_s.of(set) + (s.nodes - 1) * c.inter.alpha_s.of(set) +
         moved / ring_bandwidth(c, s);
}

double nccl_ring_s(const ClusterSpec& c, const GatherShape& s, AlphaSet set) {
  if (s.members < 2) return 0;
  if (set == AlphaSet::kIdeal) return multi_channel_ring_s(c, s, set);
  const auto by = [&](const Protocol& p) {
    return seconds(p, s, ring_bandwidth(c, s), c.latency_factor) +
           (s.nodes > 1 ? c.inter.call_s.value : 0);
  };
  Protocol ll = kLl;
  ll.most[0] = c.intra.ll_bytes_per_s.value;
  return set == AlphaSet::kNcclSimple ? by(kSimple) : std::min({by(ll), by(kLl128), by(kSimple)});
}

double nccl_pat_s(const ClusterSpec& c, const GatherShape& s, AlphaSet set) {
  if (s.members < 2) return 0;
  check(s.members == s.nodes, "PAT on ", s.members, " ranks of ", s.nodes, " nodes");
  const double card = c.inter.bandwidth_bytes_per_s.value;
  const int doublings = std::bit_width(unsigned(s.members)) - 1;
  if (set == AlphaSet::kIdeal)
    return std::bit_width(unsigned(s.members) - 1) * c.inter.alpha_s.of(set) +
           s.bytes * (s.members - 1) / s.members / card;
  return c.latency_factor *
             (8e-6 + doublings * (kSimple.exposed_inter / 3.5) + s.members * 2.8e-6) +
         s.bytes / (0.75 * card);
}

namespace {

struct Formula {
  std::string_view name;
  double (*seconds)(const ClusterSpec&, const GatherShape&, AlphaSet);
};
constexpr Formula kFormulas[] = {{"nccl_ring", nccl_ring_s},
                                 {"nccl_pat", nccl_pat_s},
                                 {"multi_channel_ring", multi_channel_ring_s}};

const Formula* find_formula(std::string_view name) {
  const auto* const at = std::ranges::find(kFormulas, name, &Formula::name);
  return at == std::end(kFormulas) ? nullptr : at;
}

}  // namespace

std::vector<std::string> formula_names() { return names_of(kFormulas); }

bool is_formula(std::string_view name) { return find_formula(name) != nullptr; }

std::string why_not_formula(const ClusterSpec& c, std::string_view name) {
  const Formula* const formula = find_formula(name);
  if (formula == nullptr || formula->seconds != nccl_pat_s || c.node_size() == 1) return {};
  return concat("NCCL's PAT needs one GPU per node, ", c.name, " has ", c.node_size(),
                "; --what-if gpus_per_node=1 has them so");
}

std::array<double, 3> gather_seconds(const ClusterSpec& c, std::string_view name,
                                     const GatherShape& s) {
  const Formula* const formula = find_formula(name);
  check(formula != nullptr, "no formula for the all-gather ", name);
  std::array<double, 3> out{};
  for (const AlphaSet set : kAlphaSets) out[size_t(set)] = formula->seconds(c, s, set);
  return out;
}

}  // namespace longnet
