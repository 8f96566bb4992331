#include "simulate/kernel_table.h"

#include <algorithm>

namespace longnet {

void KernelTable::add(double keys, double head_dim, double seconds_per_pair) {
  auto curve = std::ranges::lower_bound(curves_, head_dim, {}, &Curve::head_dim);
  if (curve == curves_.end() || curve->head_dim != head_dim)
    curve = curves_.insert(curve, {head_dim, {}});
  const std::pair point{1 / keys, seconds_per_pair};
  curve->points.insert(std::ranges::upper_bound(curve->points, point), point);
}

double KernelTable::Curve::at(double keys) const {
  const double x = 1 / std::max(1.0, keys);
  if (points.size() == 1) return points[0].second;
  size_t i = 1;
  while (i + 1 < points.size() && points[i].first < x) ++i;
  const auto &longer = points[i - 1], &shorter = points[i];
  // Measured speeds that fall with length are held at the ends.
  if (shorter.second < longer.second)
    return interpolate(std::clamp(x, longer.first, shorter.first), longer.first, longer.second,
                       shorter.first, shorter.second);
  return interpolate(x, longer.first, longer.second, shorter.first, shorter.second);
}

bool KernelTable::Curve::covers(double keys, bool longer) const {
  constexpr double kRounding = 1e-9;
  const bool has_shorter = keys * points.back().first >= 1 - kRounding;
  return longer ? has_shorter : keys * points.front().first <= 1 + kRounding && has_shorter;
}

double KernelTable::read(double keys, double d) const {
  const Curve &first = curves_.front(), &last = curves_.back();
  if (d >= last.head_dim) return last.at(keys) * d / last.head_dim;
  size_t i = 1;
  while (i + 1 < curves_.size() && curves_[i].head_dim < d) ++i;
  const double line = curves_.size() == 1
                          ? 0
                          : interpolate(d, curves_[i - 1].head_dim, curves_[i - 1].at(keys),
                                        curves_[i].head_dim, curves_[i].at(keys));
  // Small heads are no faster per FLOP than the smallest one of the table.
  return d < first.head_dim ? std::max(line, first.at(keys) * d / first.head_dim) : line;
}

bool KernelTable::covers(double keys, double d, bool longer) const {
  const auto above = std::ranges::lower_bound(curves_, d, {}, &Curve::head_dim);
  if (above == curves_.end() || !above->covers(keys, longer)) return false;
  if (above->head_dim == d) return true;
  return above != curves_.begin() && std::prev(above)->covers(keys, longer);
}

}  // namespace longnet
