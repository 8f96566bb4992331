// Points of one run that should have computed the same, and did not.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "io/record.h"

namespace longnet {

// Metrics of the function that runs of a model, or of a layer alone, computed: the loss in nats a
// token; and <y, dO> of the output and given gradients, in standard deviations of such a sum of
// random terms.
inline const std::string kLossNats = "loss_nats", kOutputProduct = "output_product";
// Largest difference between those of the same function, relative where they are beyond 1: sums in
// fp32 round in another order where attention's algorithm, ranks or layout are others.
inline constexpr double kLossTolerance = 1e-6;
// The largest difference with activations in bf16: there, differences of fp32 sums round some
// values to the other side, and sums of rows over ranks that split heads are fp32.
inline constexpr double kBf16LossTolerance = 1e-2;
// <y, dO> there, whose unit is one standard deviation: outputs that round otherwise, each value by
// half a percent or so, are 0.5 to 1.1 % of it apart.
inline constexpr double kBf16ProductTolerance = 3e-2;

// Id -> "its loss 5.54517 is 2.1e-05 away from that of ef99170a (ring N=4K P=2)", of measured
// models and layers: those with the same problem, pattern, shape and seed have the same loss, by
// any algorithm, on any ranks and in any pass.
std::map<std::string, std::string> disagreeing_points(const std::vector<PointRecord>& points);

}  // namespace longnet
