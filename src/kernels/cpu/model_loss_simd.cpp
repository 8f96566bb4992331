#include <algorithm>
#include <cmath>

#include "kernels/cpu/highway_targets.h"
#include "kernels/cpu/model_rows_simd.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/model_loss_simd.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
#include "kernels/cpu/vectors-inl.h"

HWY_BEFORE_NAMESPACE();
namespace longnet {
namespace HWY_NAMESPACE {

double sum_squares_on_target(const float* x, int64_t count) {
  const hn::ScalableTag<double> dd;
  const hn::Rebind<float, decltype(dd)> df;
  constexpr int64_t kStep = int64_t(hn::MaxLanes(dd));
  auto even = hn::Zero(dd), odd = hn::Zero(dd);
  int64_t i = 0;
  for (; i + 2 * kStep <= count; i += 2 * kStep) {
    const auto a = hn::PromoteTo(dd, hn::LoadU(df, x + i));
    const auto b = hn::PromoteTo(dd, hn::LoadU(df, x + i + kStep));
    even = hn::MulAdd(a, a, even);
    odd = hn::MulAdd(b, b, odd);
  }
  double sum = hn::GetLane(hn::SumOfLanes(dd, hn::Add(even, odd)));
  for (; i < count; ++i) sum += double(x[i]) * double(x[i]);
  return sum;
}

// ---- loss ----

double cross_entropy_row(float* x, int64_t cols, int32_t target, float scale) {
  const FloatTag df;
  FloatVec most = hn::Set(df, x[0]);
  float max = x[0];
  int64_t whole = cols / kLanes * kLanes;
  for (int64_t j = 0; j < whole; j += kLanes) most = hn::Max(most, hn::LoadU(df, x + j));
  for (int64_t j = whole; j < cols; ++j) max = HWY_MAX(max, x[j]);
  max = HWY_MAX(max, hn::GetLane(hn::MaxOfLanes(df, most)));
  const float at_target = x[target];
  constexpr int64_t kBlock = 512;  // floats whose powers are added in fp32
  double sum = 0;
  for (int64_t begin = 0; begin < cols; begin += kBlock) {
    float* const block = x + begin;
    RowSum powers;
    for_each_vector(HWY_MIN(cols - begin, kBlock), [&](auto d, int64_t j) HWY_ATTR {
      const auto above = hn::Sub(hn::LoadU(d, block + j), hn::Set(d, max));
      const auto power = exp2_below_127(d, hn::Mul(above, hn::Set(d, 1.44269504f)));
      hn::StoreU(power, d, block + j);
      powers.add(d, power);
    });
    sum += double(powers.total());
  }
  const float factor = float(double(scale) / sum);
  for_each_vector(cols, [&](auto d, int64_t j) HWY_ATTR {
    hn::StoreU(hn::Mul(hn::LoadU(d, x + j), hn::Set(d, factor)), d, x + j);
  });
  x[target] -= scale;
  return std::log(sum) + double(max) - double(at_target);
}

double cross_entropy_on_target(const CrossEntropyTask& task) {
  double loss = 0;
  for (int64_t i = 0; i < task.logits.rows; ++i) {
    float* const row = task.logits.row(i);
    if (task.targets[i] < 0)
      std::fill(row, row + task.logits.cols, 0.0f);
    else
      loss += cross_entropy_row(row, task.logits.cols, task.targets[i], task.scale);
  }
  return loss;
}

// ---- AdamW ----

void update_on_target(const UpdateTask& task, double clipping) {
  const double step = double(task.schedule[0]), learning_rate = double(task.schedule[1]);
  const double correction1 = 1 - std::pow(task.beta1, step);
  const double correction2 = 1 - std::pow(task.beta2, step);
  // weights = kept * weights - rate * first / (sqrt(second) + epsilon), both moments uncorrected.
  const double root = std::sqrt(correction2);
  const float kept = float(1 - learning_rate * task.decay);
  const float rate = float(learning_rate * root / correction1);
  const float epsilon = float(task.epsilon * root);
  const float beta1 = float(task.beta1), rest1 = float(1 - task.beta1);
  const float beta2 = float(task.beta2), rest2 = float(1 - task.beta2);
  for_each_vector(task.count, [&](auto d, int64_t i) HWY_ATTR {
    // Clipped before its square, which may have no float.
    const auto g = hn::Mul(hn::LoadU(d, task.gradient + i), hn::Set(d, float(clipping)));
    const auto m = hn::MulAdd(hn::Set(d, beta1), hn::LoadU(d, task.first_moment + i),
                              hn::Mul(hn::Set(d, rest1), g));
    const auto v = hn::MulAdd(hn::Set(d, beta2), hn::LoadU(d, task.second_moment + i),
                              hn::Mul(hn::Set(d, rest2), hn::Mul(g, g)));
    hn::StoreU(m, d, task.first_moment + i);
    hn::StoreU(v, d, task.second_moment + i);
    const auto moved =
        hn::Div(hn::Mul(hn::Set(d, rate), m), hn::Add(hn::Sqrt(v), hn::Set(d, epsilon)));
    const auto w = hn::LoadU(d, task.weights + i);
    hn::StoreU(hn::MulSub(w, hn::Set(d, kept), moved), d, task.weights + i);
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace longnet
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace longnet {

HWY_EXPORT(sum_squares_on_target);
HWY_EXPORT(cross_entropy_on_target);
HWY_EXPORT(update_on_target);

double cross_entropy_rows(const CrossEntropyTask& task) {
  return HWY_DYNAMIC_DISPATCH(cross_entropy_on_target)(task);
}
void update_weights(const UpdateTask& task, double clipping) {
  HWY_DYNAMIC_DISPATCH(update_on_target)(task, clipping);
}
double sum_squares(const float* x, int64_t count) {
  return HWY_DYNAMIC_DISPATCH(sum_squares_on_target)(x, count);
}

}  // namespace longnet
#endif  // HWY_ONCE
