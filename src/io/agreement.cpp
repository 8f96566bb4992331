#include "io/agreement.h"

#include <algorithm>
#include <cmath>

#include "core/check.h"
#include "io/axes.h"

namespace longnet {
namespace {

// Returns the parameters that decide the loss: all but those of how it is computed.
std::string function_of(PointParams p) {
  for (const Axis& axis : axes())
    if (axis.use.how) axis.member.set(p, axis.standard);
  return canonical_params_json(p);
}

}  // namespace

std::map<std::string, std::string> disagreeing_points(const std::vector<PointRecord>& points) {
  std::map<std::string, std::string> found;
  std::map<std::string, const PointRecord*> firsts;  // by function
  for (const PointRecord& r : points) {
    auto loss = r.metrics.find(kLossNats);
    if (loss == r.metrics.end()) loss = r.metrics.find(kOutputProduct);
    if (r.status != PointStatus::kOk || loss == r.metrics.end()) continue;
    const auto [place, is_new] = firsts.try_emplace(function_of(r.params), &r);
    if (is_new) continue;
    const PointRecord& first = *place->second;
    const double other = first.metrics.at(loss->first);
    const double difference = std::abs(loss->second - other) / std::max(1.0, std::abs(other));
    const bool wide = r.params.problem.dtype == DType::kFloat32, is_loss = loss->first == kLossNats;
    if (difference > (wide ? kLossTolerance : is_loss ? kBf16LossTolerance : kBf16ProductTolerance))
      found[r.id] = concat("its ", is_loss ? "loss " : "<y, dO> ", loss->second, " is ", difference,
                           " away from that of ", first.id, " (", describe(first.params), ")");
  }
  return found;
}

}  // namespace longnet
