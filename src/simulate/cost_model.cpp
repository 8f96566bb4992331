#include "simulate/cost_model.h"

#include <algorithm>
#include <cmath>

#include "core/check.h"
#include "schedule/accounting.h"

namespace longnet {
namespace {

constexpr double kOneBlock = 1e18;  // rows of a block that holds all queries

// Runs of queries of one head: the executor starts a new block with each owner, range and segment.
double count_runs(const ShardedProblem& s, const Attend& op) {
  const BranchRows rows(s.pattern, op.branch, s.problem);
  double runs = 0;
  for_each_query_range(s, op, [&](const TokenRange& q) {
    runs += double(rows.segment_of(q.last()) - rows.segment_of(q.first) + 1);
  });
  return runs;
}

// True of later steps of a zigzag ring: each range of queries sees whole ranges of keys or none.
bool sees_whole_ranges(const ShardedProblem& s, const Attend& op) {
  if (s.layout.kind() != LayoutKind::kZigzag) return false;
  bool cuts = false;
  for_each_query_range(s, op, [&](const TokenRange& q) {
    for (const TokenRange& k : tokens_of(s, {.rows = op.kv.rows}))
      cuts |= k.last() > q.first && k.first <= q.last();
  });
  return !cuts;
}

// The device's model for `p`, interpolated in head_dim and held at the ends, whose head_dim it then
// has; `masked` chooses among causal ones, `backward` among those of backward passes. None when
// there is none for its dtype.
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
  if (below != above) model.head_dim = d;
  for (const auto part :
       {&AttendModel::block_s, &AttendModel::query_s, &AttendModel::key_s, &AttendModel::pair_s})
    model.*part = interpolate(d, below->head_dim, below->*part, above->head_dim, above->*part);
  return model;
}

// How far a speed that is read in `all` rows is a guess; `known`: those that are no estimates.
Guess guess_of(const KernelTable& all, const KernelTable& known, double keys, double head_dim) {
  if (known.covers(keys, head_dim)) return Guess::kNone;
  if (known.empty() || known.read(keys, head_dim) != all.read(keys, head_dim))
    return Guess::kEstimate;
  return known.covers(keys, head_dim, /*longer=*/true) ? Guess::kLongerRows : Guess::kOtherSize;
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

CostModel::CostModel(const ClusterSpec& cluster, const ShardedProblem& sharded)
    : cluster_(cluster),
      sharded_(sharded),
      unmasked_(sharded),
      prices_{read_prices(false), read_prices(true)} {
  unmasked_.problem.causal = false;
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
    const double waves = row.all_rows > 0 ? wave_factor(row.all_rows, row.head_dim, backward) : 1;
    const double pair_s =
        pair_flops(backward ? 2.5 : 1.0, int64_t(row.head_dim)) / (row.flops_per_s * waves);
    out.tables[row.causal].add(row.rows, row.head_dim, pair_s);
    if (!row.estimate) out.known[row.causal].add(row.rows, row.head_dim, pair_s);
  }
  out.has_unmasked = !out.tables[0].empty();
  if (!out.has_unmasked) out.tables[0] = out.tables[1];
  return out;
}

// Blocks of rows run in waves, of which the last is seldom full: whole waves over those needed.
double CostModel::wave_factor(double rows, double head_dim, bool backward) const {
  const DeviceSpec& device = cluster_.device;
  if (device.fill_rows.value == 0) return 1;
  const auto at_once = device.blocks_at_once.find(device.kernel);
  const bool is_one =
      backward || at_once == device.blocks_at_once.end() || head_dim > at_once->second.max_head_dim;
  const double waves = rows / (device.fill_rows.value * (is_one ? 1 : at_once->second.value));
  return std::ceil(waves) / waves;
}

// For an attend that a mask cuts, the table's causal rows give the cost of the triangle (half of
// the others are seen); between that and all of them, in proportion.
Price CostModel::split_price(const Prices& prices, const AttendCounts& c, double rows,
                             double most) const {
  const double d = double(sharded_.problem.head_dim);
  const auto& [unmasked, masked] = prices.tables;
  const double waves = wave_factor(rows, d, prices.backward);
  const Guess of_uncut =
      prices.has_unmasked ? guess_of(unmasked, prices.known[0], most, d) : Guess::kEstimate;
  double uncut = unmasked.read(most, d);
  if (of_uncut != Guess::kNone && !masked.empty() &&
      (!prices.backward || prices.known[1].covers(most, d)))
    uncut = std::min(uncut, masked.read(most, d));
  if (!c.masked) return {waves * uncut, of_uncut};
  const double seen = c.pairs / rows, seen_share = std::max(0.5, seen / most);
  const double triangle_keys = std::min(most, 2 * seen);
  const double triangle = masked.read(triangle_keys, d);
  const bool is_slower = prices.backward && prices.has_unmasked && uncut > triangle;
  // A triangle's half has the diagonal besides.
  const bool takes_uncut = is_slower || seen_share > 0.51;
  return {waves * interpolate(seen_share, 0.5, is_slower ? uncut : triangle, 1, uncut),
          std::max(guess_of(masked, prices.known[1], triangle_keys, d),
                   takes_uncut ? of_uncut : Guess::kNone)};
}

Price CostModel::pair_price(const Prices& prices, const Attend& op, const AttendCounts& c) const {
  const auto split = cluster_.device.backward_splits.find(cluster_.device.kernel);
  const KernelSplit by = prices.backward && split != cluster_.device.backward_splits.end()
                             ? split->second.value
                             : KernelSplit::kQueries;
  const Price by_queries = split_price(prices, c, c.queries, c.most_keys);
  if (by == KernelSplit::kQueries) return by_queries;
  const double keys = attended_keys(sharded_, op);
  const double held = c.masked ? attended_keys(unmasked_, op) : keys;
  const Price by_keys = split_price(prices, c, keys, c.queries * c.most_keys / held);
  if (by == KernelSplit::kKeys) return by_keys;
  return {(3 * by_queries.seconds + 4 * by_keys.seconds) / 7,  // products of the two passes
          std::max(by_queries.guess, by_keys.guess)};
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

CostModel::AttendCost CostModel::attend(const Attend& op, const AttendPass& pass) const {
  const AttentionProblem& p = sharded_.problem;
  const DeviceSpec& device = cluster_.device;
  const Prices& prices = prices_[pass.backward];
  if (prices.tables[p.causal].empty()) throw UsageError(why_no_speed(cluster_, p, Pass::kBackward));
  const auto& any = prices.models[p.causal];
  AttendCounts c = count_attend(sharded_, op, any ? any->block_rows : kOneBlock);
  const double launch = device.launch_s.value;
  if (any) {
    const auto& own = prices.models[c.masked];
    const bool is_known = own && own->head_dim == double(p.head_dim);
    return {{attend_seconds(own ? *own : *any, c) / speed_ + launch,
             is_known ? Guess::kNone : Guess::kOtherSize},
            c.pairs};
  }
  if (c.pairs == 0) return {{launch}};
  if (c.masked && sees_whole_ranges(sharded_, op)) {
    c.most_keys = c.pairs / c.queries;
    c.masked = false;
  }
  const Price pair = pair_price(prices, op, c);
  const double compute = c.pairs * pair.seconds;
  const double memory =
      memory_bytes(op, c, pass.backward) / device.memory_bandwidth_bytes_per_s.value;
  double seconds = std::max(compute, memory) + launch;
  if (pass.adds && cluster_.merge != MergeKind::kFused)
    seconds += launch + c.queries * double(p.head_dim * (dtype_bytes(p.dtype) + 8)) /
                            device.memory_bandwidth_bytes_per_s.value;
  return {{seconds, pair.guess}, c.pairs};
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

Price CostModel::gemm(const Gemm& op, int64_t bytes) const {
  constexpr double kTile = 128;
  const DeviceSpec& d = cluster_.device;
  const auto speed = d.gemm_flops.find(sharded_.problem.dtype);
  if (speed == d.gemm_flops.end())
    throw UsageError(why_no_speed(cluster_, sharded_.problem, Pass::kForward, Scope::kModel));
  const MatrixView& into = op.into[0];
  const double tiles = std::ceil(double(into.rows) / kTile) * std::ceil(double(into.cols) / kTile);
  const double busy = std::min(1.0, tiles / std::max(1.0, d.fill_rows.value / kTile));
  const double compute = gemm_flops(op) / (speed->second.value * busy * speed_);
  const Guess guess = busy < 1 ? Guess::kOtherSize : Guess::kNone;
  if (d.gemm_bytes_per_s.value > 0)
    return {d.launch_s.value + compute + double(bytes) / d.gemm_bytes_per_s.value, guess};
  const double memory = double(bytes) / d.memory_bandwidth_bytes_per_s.value;
  return {d.launch_s.value + std::max(compute, memory), guess};
}

Price CostModel::function_price(int64_t bytes, const Quantity& speed) const {
  return {copy_s(bytes, speed, 1), speed.value == 0 ? Guess::kNoFigure : Guess::kNone};
}
Price CostModel::row_wise(RowFunction function, int64_t bytes) const {
  const auto& speeds = cluster_.device.row_wise_bytes_per_s;
  const auto speed = speeds.find(function);
  return function_price(bytes, speed == speeds.end() ? Quantity{} : speed->second);
}
Price CostModel::cross_entropy(int64_t bytes) const {
  return function_price(bytes, cluster_.device.cross_entropy_bytes_per_s);
}
Price CostModel::update(int64_t bytes) const {
  return function_price(bytes, cluster_.device.update_bytes_per_s);
}

}  // namespace longnet
