#include <array>
#include <cmath>

#include "kernels/cpu/highway_targets.h"
#include "kernels/cpu/model_rows_simd.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/layer_norm_simd.cpp"
#include "hwy/cache_control.h"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
#include "kernels/cpu/vectors-inl.h"

HWY_BEFORE_NAMESPACE();
namespace longnet {
namespace HWY_NAMESPACE {

struct Moments {
  float mean, factor;  // factor = 1 / sqrt(variance + epsilon)
};
struct PartMoments {
  float mean, squares;  // squares about the mean
};

// Passes over a row that is in a cache leave memory idle: meanwhile the next row is asked for.
template <class Storage>
HWY_INLINE PartMoments moments_here(const Storage* x, const Storage* next, int64_t cols) {
  RowSum sum, squares;
  for_each_vector(cols, [&](auto d, int64_t j) HWY_ATTR { sum.add(d, load_floats(d, x + j)); });
  const float mean = sum.total() / float(cols);
  for_each_vector(cols, [&](auto d, int64_t j) HWY_ATTR {
    hwy::Prefetch(next + j);
    const auto centred = hn::Sub(load_floats(d, x + j), hn::Set(d, mean));
    squares.add(d, hn::Mul(centred, centred));
  });
  return {mean, squares.total()};
}

HWY_INLINE Moments moments_of(PartMoments all, int64_t cols, double epsilon) {
  return {all.mean, float(1.0 / std::sqrt(double(all.squares) / double(cols) + epsilon))};
}

// Returns the moments of a row whose columns are split into parts. Its sum of squares about the
// mean is that of the parts about their own means plus that of these means about the mean of all.
HWY_INLINE Moments moments_of(const RowParts& parts, int64_t row, int64_t cols, double epsilon) {
  double mean = 0, squares = 0;
  for (int64_t p = 0; p < parts.parts; ++p)
    mean += double(parts.at(p, row)[0]) / double(parts.parts);
  for (int64_t p = 0; p < parts.parts; ++p) {
    const double off = double(parts.at(p, row)[0]) - mean;
    squares += double(parts.at(p, row)[1]) + double(cols) * off * off;
  }
  return moments_of({float(mean), float(squares)}, cols * parts.parts, epsilon);
}

template <class Task, class Storage>
HWY_INLINE Moments moments_of(const Task& task, int64_t row, const Storage* x) {
  const int64_t cols = task.x.cols;
  if (task.moments.parts > 0) return moments_of(task.moments, row, cols, task.epsilon);
  return moments_of(moments_here(x, x + task.x.stride, cols), cols, task.epsilon);
}

template <class Storage>
void row_moments(const Matrix& x, float* into) {
  for (int64_t i = 0; i < x.rows; ++i) {
    const Storage* row = row_of<Storage>(x, i);
    const PartMoments m = moments_here(row, row + x.stride, x.cols);
    into[2 * i] = m.mean, into[2 * i + 1] = m.squares;
  }
}

void row_moments_on_target(const Matrix& x, float* into) {
  is_wide(x) ? row_moments<float>(x, into) : row_moments<Bf16Bits>(x, into);
}

template <class X, class Y>
void layer_norm(const LayerNormTask& task) {
  for (int64_t i = 0; i < task.x.rows; ++i) {
    const X* x = row_of<X>(task.x, i);
    Y* y = row_of<Y>(task.y, i);
    const Moments m = moments_of(task, i, x);
    for_each_vector(task.x.cols, [&](auto d, int64_t j) HWY_ATTR {
      hwy::Prefetch(y + task.y.stride + j);
      const auto centred = hn::Sub(load_floats(d, x + j), hn::Set(d, m.mean));
      const auto normal = hn::Mul(centred, hn::Set(d, m.factor));
      store_floats(hn::MulAdd(normal, hn::LoadU(d, task.gain + j), hn::LoadU(d, task.bias + j)), d,
                   y + j);
    });
  }
}

void layer_norm_on_target(const LayerNormTask& task) {
  with_storages(task.x, task.y, [&]<class X, class Y>(X, Y) HWY_ATTR { layer_norm<X, Y>(task); });
}

// With g = grad_y * gain and the normalised row z:
//   grad_x = factor * (g - mean(g) - z * mean(g * z))
template <class X, class Gradient, class Task>
struct NormBackward {
  const Task& task;
  const X* x;
  const Gradient* grad_y;
  Moments m;

  NormBackward(const Task& of, int64_t row)
      : task(of),
        x(row_of<X>(of.x, row)),
        grad_y(row_of<Gradient>(of.grad_y, row)),
        m(moments_of(of, row, x)) {}
  template <class D>
  HWY_INLINE hn::Vec<D> normal(D d, int64_t j) const {
    return hn::Mul(hn::Sub(load_floats(d, x + j), hn::Set(d, m.mean)), hn::Set(d, m.factor));
  }
  template <class D>
  HWY_INLINE hn::Vec<D> grad(D d, int64_t j) const {
    return hn::Mul(load_floats(d, grad_y + j), hn::LoadU(d, task.gain + j));
  }
  // Returns the sums of g and g * z over the columns that are here.
  HWY_INLINE std::array<float, 2> sums() const {
    RowSum sum, sum_normal;
    for_each_vector(task.x.cols, [&](auto d, int64_t j) HWY_ATTR {
      hwy::Prefetch(grad_y + task.grad_y.stride + j);
      const auto g = grad(d, j);
      sum.add(d, g);
      sum_normal.add(d, hn::Mul(g, normal(d, j)));
    });
    return {sum.total(), sum_normal.total()};
  }
};

// Means of g and g * z, over all columns.
template <class X, class Gradient>
HWY_INLINE std::array<float, 2> means_of(
    const NormBackward<X, Gradient, LayerNormBackwardTask>& row, int64_t i) {
  const LayerNormBackwardTask& task = row.task;
  const int64_t cols = task.x.cols;
  if (task.sums.parts == 0) {
    const auto [sum, sum_normal] = row.sums();
    return {sum / float(cols), sum_normal / float(cols)};
  }
  std::array<double, 2> sums{};
  for (int64_t p = 0; p < task.sums.parts; ++p)
    for (size_t k = 0; k < 2; ++k) sums[k] += double(task.sums.at(p, i)[k]);
  const double all = double(cols * task.sums.parts);
  return {float(sums[0] / all), float(sums[1] / all)};
}

template <class X, class Gradient>
void layer_norm_backward(const LayerNormBackwardTask& task) {
  for (int64_t i = 0; i < task.x.rows; ++i) {
    const NormBackward<X, Gradient, LayerNormBackwardTask> row(task, i);
    Gradient* grad_x = row_of<Gradient>(task.grad_x, i);
    const auto [mean, mean_normal] = means_of(row, i);
    for_each_vector(
        task.x.cols, [&, mean = mean, mean_normal = mean_normal](auto d, int64_t j) HWY_ATTR {
          hwy::Prefetch(grad_x + task.grad_x.stride + j);
          const auto dy = load_floats(d, row.grad_y + j), z = row.normal(d, j);
          hn::StoreU(hn::MulAdd(dy, z, hn::LoadU(d, task.grad_gain + j)), d, task.grad_gain + j);
          hn::StoreU(hn::Add(dy, hn::LoadU(d, task.grad_bias + j)), d, task.grad_bias + j);
          const auto rest =
              hn::NegMulAdd(z, hn::Set(d, mean_normal), hn::Sub(row.grad(d, j), hn::Set(d, mean)));
          const auto before = task.accumulate ? load_floats(d, grad_x + j) : hn::Zero(d);
          store_floats(hn::MulAdd(rest, hn::Set(d, row.m.factor), before), d, grad_x + j);
        });
  }
}

template <class X, class Gradient>
void layer_norm_sums(const LayerNormSumsTask& task) {
  for (int64_t i = 0; i < task.x.rows; ++i) {
    const auto sums = NormBackward<X, Gradient, LayerNormSumsTask>(task, i).sums();
    task.into[2 * i] = sums[0], task.into[2 * i + 1] = sums[1];
  }
}

void layer_norm_sums_on_target(const LayerNormSumsTask& task) {
  with_storages(task.x, task.grad_y,
                [&]<class X, class Y>(X, Y) HWY_ATTR { layer_norm_sums<X, Y>(task); });
}

void layer_norm_backward_on_target(const LayerNormBackwardTask& task) {
  with_storages(task.x, task.grad_y,
                [&]<class X, class Y>(X, Y) HWY_ATTR { layer_norm_backward<X, Y>(task); });
}

}  // namespace HWY_NAMESPACE
}  // namespace longnet
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace longnet {

HWY_EXPORT(layer_norm_on_target);
HWY_EXPORT(layer_norm_backward_on_target);
HWY_EXPORT(row_moments_on_target);
HWY_EXPORT(layer_norm_sums_on_target);

void layer_norm_rows(const LayerNormTask& task) {
  HWY_DYNAMIC_DISPATCH(layer_norm_on_target)(task);
}
void layer_norm_backward_rows(const LayerNormBackwardTask& task) {
  HWY_DYNAMIC_DISPATCH(layer_norm_backward_on_target)(task);
}
void moments_of_rows(const Matrix& x, float* into) {
  HWY_DYNAMIC_DISPATCH(row_moments_on_target)(x, into);
}
void layer_norm_sums_of_rows(const LayerNormSumsTask& task) {
  HWY_DYNAMIC_DISPATCH(layer_norm_sums_on_target)(task);
}

}  // namespace longnet
#endif  // HWY_ONCE
