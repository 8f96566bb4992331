#include "simulate/cost_model.h"

#include <algorithm>
#include <cmath>

#include "core/check.h"
#include "schedule/accounting.h"
#include "schedule/row_map.h"
#include "simulate/attend_counts.h"

namespace longnet {
namespace {

constexpr double kOneBlock = 1e18;  // rows of a block that holds all queries

int64_t group_size(const AttentionProblem& p) { return p.num_heads / p.num_kv_heads; }

}  // namespace

double CostModel::Curve::at(double x) const {
  if (x <= points.front().first) return points.front().second;
  for (size_t i = 1; i < points.size(); ++i)
    if (x <= points[i].first)
      return interpolate(x, points[i - 1].first, points[i - 1].second, points[i].first,
                         points[i].second);
  return points.back().second;
}

std::string CostModel::why_unsupported(const ClusterSpec& c, const AttentionProblem& p) {
  for (const KernelRow& row : c.device.attend)
    if (row.dtype == p.dtype && row.causal == p.causal) return {};
  return concat(c.name, " has no speed of ", p.causal ? "causal " : "", "attention in ",
                to_string(p.dtype), "; add rows to device.attend, or take another model.dtype");
}

CostModel::CostModel(const ClusterSpec& cluster, const ShardedProblem& sharded)
    : cluster_(cluster), sharded_(sharded) {
  const AttentionProblem& p = sharded.problem;
  for (const KernelRow& row : cluster.device.attend) {
    if (row.dtype != p.dtype || row.causal != p.causal) continue;
    auto curve = std::find_if(curves_.begin(), curves_.end(),
                              [&](const Curve& c) { return c.head_dim == row.head_dim; });
    if (curve == curves_.end()) curve = curves_.insert(curves_.end(), {row.head_dim, {}});
    curve->points.emplace_back(std::log2(row.rows), row.flops_per_s);
  }
  if (curves_.empty()) throw UsageError(why_unsupported(cluster, p));
  const int all = cluster.num_gpus(), busy = sharded.layout.world_size();
  if (cluster.device.alone_speed.value > 0 && all > 1)
    speed_ = interpolate(std::min(busy, all), 1, cluster.device.alone_speed.value, all, 1);
  for (Curve& c : curves_) std::sort(c.points.begin(), c.points.end());
  std::sort(curves_.begin(), curves_.end(),
            [](const Curve& a, const Curve& b) { return a.head_dim < b.head_dim; });
}

double CostModel::attend_flops_per_s(double keys) const {
  const double x = std::log2(std::max(1.0, keys)), d = double(sharded_.problem.head_dim);
  if (d <= curves_.front().head_dim) return curves_.front().at(x);
  for (size_t i = 1; i < curves_.size(); ++i)
    if (d <= curves_[i].head_dim)
      return interpolate(d, curves_[i - 1].head_dim, curves_[i - 1].at(x), curves_[i].head_dim,
                         curves_[i].at(x));
  return curves_.back().at(x);
}

CostModel::AttendCost CostModel::attend(const Attend& op) const {
  const AttentionProblem& p = sharded_.problem;
  const DeviceSpec& device = cluster_.device;
  AttendModel mixed;
  if (const AttendModel* any = find_attend_model(device, p, p.causal, mixed)) {
    const AttendCounts counts = count_attend(sharded_, op, any->block_rows);
    const AttendModel* model = find_attend_model(device, p, counts.masked, mixed);
    if (!model) model = any;
    return {attend_seconds(*model, counts) / speed_ + device.launch_s.value, counts.pairs};
  }
  const double pairs = attended_pairs(sharded_, op), queries = attended_queries(sharded_, op);
  if (pairs == 0) return {device.launch_s.value, 0};
  const double keys = pairs / queries * (p.causal ? 2 : 1);
  const double busy =
      device.fill_rows.value > 0 ? std::min(1.0, queries / device.fill_rows.value) : 1.0;
  const double compute = pair_flops(pairs, p.head_dim) / (attend_flops_per_s(keys) * busy);
  // Memory is read and written at least for Q, the result and each K and V row that queries see;
  // heads that share K and V may read them together.
  const double row = double(p.head_dim * dtype_bytes(p.dtype));
  const double kv_rows = count_attend(sharded_, op, kOneBlock).key_rows / double(group_size(p));
  const double kv_bytes =
      std::min(2 * row * kv_rows, double(view_bytes(sharded_, TensorKind::kKeyValue, op.kv)));
  const double bytes = queries * (row + 4.0 * double(p.head_dim + 1)) + kv_bytes;
  return {
      std::max(compute, bytes / device.memory_bandwidth_bytes_per_s.value) + device.launch_s.value,
      pairs};
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
double CostModel::merge_s(int64_t bytes) const {
  return copy_s(bytes, cluster_.device.merge_bytes_per_s, 3);  // two read, one written
}
double CostModel::reset_s(int64_t bytes) const { return copy_s(bytes, {}, 1); }

}  // namespace longnet
