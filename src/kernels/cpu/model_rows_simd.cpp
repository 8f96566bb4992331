#include "kernels/cpu/model_rows_simd.h"

#include <algorithm>
#include <cmath>

#include "kernels/cpu/highway_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/model_rows_simd.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
#include "kernels/cpu/vectors-inl.h"

HWY_BEFORE_NAMESPACE();
namespace longnet {
namespace HWY_NAMESPACE {

// A sum over a row, vector by vector; the lanes are added in the end.
class RowSum {
 public:
  HWY_INLINE RowSum() : whole_(hn::Zero(FloatTag())) {}
  template <class D>
  HWY_INLINE void add(D, hn::Vec<D> x) {
    if constexpr (hn::MaxLanes(D()) == size_t(kLanes))
      whole_ = hn::Add(whole_, x);
    else
      rest_ += hn::GetLane(x);
  }
  HWY_INLINE float total() const { return hn::GetLane(hn::SumOfLanes(FloatTag(), whole_)) + rest_; }

 private:
  FloatVec whole_;
  float rest_ = 0.0f;
};

// ---- layer normalisation ----

struct Moments {
  float mean, factor;  // factor = 1 / sqrt(variance + epsilon)
};

HWY_INLINE Moments moments_of(const float* x, int64_t cols, double epsilon) {
  RowSum sum, squares;
  for_each_vector(cols, [&](auto d, int64_t j) HWY_ATTR { sum.add(d, hn::LoadU(d, x + j)); });
  const float mean = sum.total() / float(cols);
  for_each_vector(cols, [&](auto d, int64_t j) HWY_ATTR {
    const auto centred = hn::Sub(hn::LoadU(d, x + j), hn::Set(d, mean));
    squares.add(d, hn::Mul(centred, centred));
  });
  return {mean, float(1.0 / std::sqrt(double(squares.total()) / double(cols) + epsilon))};
}

void layer_norm_on_target(const LayerNormTask& task) {
  for (int64_t i = 0; i < task.x.rows; ++i) {
    const float* x = task.x.row(i);
    float* y = task.y.row(i);
    const Moments m = moments_of(x, task.x.cols, task.epsilon);
    for_each_vector(task.x.cols, [&](auto d, int64_t j) HWY_ATTR {
      const auto centred = hn::Sub(hn::LoadU(d, x + j), hn::Set(d, m.mean));
      const auto normal = hn::Mul(centred, hn::Set(d, m.factor));
      hn::StoreU(hn::MulAdd(normal, hn::LoadU(d, task.gain + j), hn::LoadU(d, task.bias + j)), d,
                 y + j);
    });
  }
}

// With g = grad_y * gain and the normalised row z:
//   grad_x = factor * (g - mean(g) - z * mean(g * z))
void layer_norm_backward_on_target(const LayerNormBackwardTask& task) {
  const int64_t cols = task.x.cols;
  for (int64_t i = 0; i < task.x.rows; ++i) {
    const float *x = task.x.row(i), *grad_y = task.grad_y.row(i);
    float* grad_x = task.grad_x.row(i);
    const Moments m = moments_of(x, cols, task.epsilon);
    const auto normal = [&](auto d, int64_t j) HWY_ATTR {
      return hn::Mul(hn::Sub(hn::LoadU(d, x + j), hn::Set(d, m.mean)), hn::Set(d, m.factor));
    };
    const auto grad = [&](auto d, int64_t j) HWY_ATTR {
      return hn::Mul(hn::LoadU(d, grad_y + j), hn::LoadU(d, task.gain + j));
    };
    RowSum sum, sum_normal;
    for_each_vector(cols, [&](auto d, int64_t j) HWY_ATTR {
      const auto g = grad(d, j);
      sum.add(d, g);
      sum_normal.add(d, hn::Mul(g, normal(d, j)));
    });
    const float mean = sum.total() / float(cols), mean_normal = sum_normal.total() / float(cols);
    for_each_vector(cols, [&](auto d, int64_t j) HWY_ATTR {
      const auto dy = hn::LoadU(d, grad_y + j), z = normal(d, j);
      hn::StoreU(hn::MulAdd(dy, z, hn::LoadU(d, task.grad_gain + j)), d, task.grad_gain + j);
      hn::StoreU(hn::Add(dy, hn::LoadU(d, task.grad_bias + j)), d, task.grad_bias + j);
      const auto rest =
          hn::NegMulAdd(z, hn::Set(d, mean_normal), hn::Sub(grad(d, j), hn::Set(d, mean)));
      const auto before = task.accumulate ? hn::LoadU(d, grad_x + j) : hn::Zero(d);
      hn::StoreU(hn::MulAdd(rest, hn::Set(d, m.factor), before), d, grad_x + j);
    });
  }
}

// ---- GELU ----

// exp(-x^2 / 2).
template <class D>
HWY_INLINE hn::Vec<D> exp_of_half_square(D d, hn::Vec<D> x) {
  const auto half_log2e = hn::Set(d, -0.72134752f);
  return exp2_below_127(d, hn::Mul(hn::Mul(x, x), half_log2e));
}

// Phi(x), the standard normal distribution, where e = exp(-x^2 / 2). The polynomial is a minimax
// fit of Phi(-z) exp(z^2 / 2) for z in [0, 13.5] with relative error 3e-8.
template <class D>
HWY_INLINE hn::Vec<D> normal_below(D d, hn::Vec<D> x, hn::Vec<D> e) {
  const auto z = hn::Abs(x), one = hn::Set(d, 1.0f);
  const auto u = hn::Div(one, hn::MulAdd(z, hn::Set(d, 0.34f), one));
  auto p = hn::Set(d, -0.026370253f);
  p = hn::MulAdd(p, u, hn::Set(d, 0.14067209f));
  p = hn::MulAdd(p, u, hn::Set(d, -0.27546227f));
  p = hn::MulAdd(p, u, hn::Set(d, 0.20473261f));
  p = hn::MulAdd(p, u, hn::Set(d, -0.046395034f));
  p = hn::MulAdd(p, u, hn::Set(d, 0.11603495f));
  p = hn::MulAdd(p, u, hn::Set(d, 0.115035094f));
  p = hn::MulAdd(p, u, hn::Set(d, 0.13613348f));
  p = hn::MulAdd(p, u, hn::Set(d, 0.13561934f));
  const auto below = hn::Mul(hn::Mul(p, u), e);  // Phi(-z)
  return hn::IfThenElse(hn::Gt(x, hn::Zero(d)), hn::Sub(one, below), below);
}

void gelu_on_target(const Matrix& x, const Matrix& y) {
  for (int64_t i = 0; i < x.rows; ++i) {
    const float* from = x.row(i);
    float* to = y.row(i);
    for_each_vector(x.cols, [&](auto d, int64_t j) HWY_ATTR {
      const auto v = hn::LoadU(d, from + j);
      hn::StoreU(hn::Mul(v, normal_below(d, v, exp_of_half_square(d, v))), d, to + j);
    });
  }
}

void gelu_backward_on_target(const Matrix& x, const Matrix& grad_y, const Matrix& grad_x) {
  for (int64_t i = 0; i < x.rows; ++i) {
    const float *from = x.row(i), *grad = grad_y.row(i);
    float* to = grad_x.row(i);
    for_each_vector(x.cols, [&](auto d, int64_t j) HWY_ATTR {
      const auto v = hn::LoadU(d, from + j);
      const auto e = exp_of_half_square(d, v);
      const auto density = hn::Mul(e, hn::Set(d, 0.39894228f));  // 1 / sqrt(2 pi)
      const auto slope = hn::MulAdd(v, density, normal_below(d, v, e));
      hn::StoreU(hn::Mul(hn::LoadU(d, grad + j), slope), d, to + j);
    });
  }
}

// ---- rotary positions ----

// Turns pairs of one row: [head_dim] cosines and sines, each twice, the first of a pair negated.
HWY_INLINE void turn_row(float* x, int64_t cols, int64_t head_dim, const float* cosine,
                         const float* sine) {
#if HWY_TARGET == HWY_SCALAR
  for (int64_t j = 0; j < cols; j += 2) {
    const int64_t at = j % head_dim;
    const float even = x[j], odd = x[j + 1];
    x[j] = even * cosine[at] + odd * sine[at];
    x[j + 1] = odd * cosine[at + 1] + even * sine[at + 1];
  }
#else
  const hn::CappedTag<float, 8> d8;
  for (int64_t head = 0; head < cols; head += head_dim) {
    for (int64_t j = 0; j < head_dim; j += int64_t(hn::MaxLanes(d8))) {
      const auto v = hn::LoadU(d8, x + head + j);
      const auto turned = hn::Mul(hn::Shuffle2301(v), hn::LoadU(d8, sine + j));
      hn::StoreU(hn::MulAdd(v, hn::LoadU(d8, cosine + j), turned), d8, x + head + j);
    }
  }
#endif
}

void rotate_on_target(const RotateTask& task) {
  constexpr int64_t kPairs = 128;
  double re[kPairs], im[kPairs], step_re[kPairs], step_im[kPairs];  // factor * e^(i angle)
  const int64_t pairs = task.head_dim / 2;
  const TokenRange& positions = task.positions;
  for (int64_t p = 0; p < pairs; ++p) {
    const double part = double(2 * p) / double(task.head_dim);
    const double frequency = (task.inverse_angle ? -1 : 1) * std::pow(10000.0, -part);
    const double growth = task.xpos_scale == 0 ? 0.0
                                               : (task.negative_power ? -1 : 1) *
                                                     std::log((part + 0.4) / 1.4) / task.xpos_scale;
    const auto set = [&](double factor, double angle, double& to_re, double& to_im) {
      to_re = factor * std::cos(angle);
      to_im = factor * std::sin(angle);
    };
    const double first = double(positions.first), stride = double(positions.stride);
    set(std::exp(growth * (first - task.xpos_centre)), frequency * first, re[p], im[p]);
    set(std::exp(growth * stride), frequency * stride, step_re[p], step_im[p]);
  }
  for (int64_t i = 0; i < task.x.rows; ++i) {
    float cosine[2 * kPairs], sine[2 * kPairs];
    for (int64_t p = 0; p < pairs; ++p) {
      cosine[2 * p] = cosine[2 * p + 1] = float(re[p]);
      sine[2 * p] = -float(im[p]);
      sine[2 * p + 1] = float(im[p]);
      const double next = re[p] * step_re[p] - im[p] * step_im[p];
      im[p] = re[p] * step_im[p] + im[p] * step_re[p];
      re[p] = next;
    }
    turn_row(task.x.row(i), task.x.cols, task.head_dim, cosine, sine);
  }
}

// ---- sums ----

void add_matrix_on_target(const Matrix& x, const Matrix& y) {
  for (int64_t i = 0; i < x.rows; ++i) {
    const float* from = x.row(i);
    float* to = y.row(i);
    for_each_vector(x.cols, [&](auto d, int64_t j) HWY_ATTR {
      hn::StoreU(hn::Add(hn::LoadU(d, to + j), hn::LoadU(d, from + j)), d, to + j);
    });
  }
}

// into += rows [first, first + kRows) of x, one after the other.
template <int kRows>
HWY_INLINE void add_rows_of(const Matrix& x, int64_t first, float* into) {
  for_each_vector(x.cols, [&](auto d, int64_t j) HWY_ATTR {
    auto sum = hn::LoadU(d, into + j);
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) sum = hn::Add(sum, hn::LoadU(d, x.row(first + r) + j));
    hn::StoreU(sum, d, into + j);
  });
}

// Hardware prefetchers follow four rows at a time where rows lie in different pages, and only one
// where they do not.
void add_columns_on_target(const Matrix& x, float* into) {
  constexpr int64_t kGroupRows = 64, kSums = 4096, kPage = 4096;
  const bool far_apart = x.stride * int64_t(sizeof(float)) >= kPage;
  alignas(64) float sums[kSums];
  for (int64_t begin = 0; begin < x.cols; begin += kSums) {
    const Matrix columns = x.columns_from(begin, HWY_MIN(x.cols - begin, kSums));
    for (int64_t first = 0; first < x.rows; first += kGroupRows) {
      std::fill(sums, sums + columns.cols, 0.0f);
      const int64_t end = HWY_MIN(first + kGroupRows, x.rows);
      int64_t i = first;
      for (; far_apart && i + 4 <= end; i += 4) add_rows_of<4>(columns, i, sums);
      for (; i < end; ++i) add_rows_of<1>(columns, i, sums);
      add_rows_of<1>({sums, 1, columns.cols, columns.cols}, 0, into + begin);
    }
  }
}

void add_to_rows_on_target(const int32_t* rows, const Matrix& x, const Matrix& table) {
  for (int64_t i = 0; i < x.rows; ++i)
    add_matrix_on_target(x.rows_from(i, 1), table.rows_from(rows[i], 1));
}

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

void update_on_target(const UpdateTask& task) {
  const double correction1 = 1 - std::pow(task.beta1, double(task.step));
  const double correction2 = 1 - std::pow(task.beta2, double(task.step));
  // weights = kept * weights - rate * first / (sqrt(second) + epsilon), both moments uncorrected.
  const double root = std::sqrt(correction2);
  const float kept = float(1 - task.learning_rate * task.decay);
  const float rate = float(task.learning_rate * root / correction1);
  const float epsilon = float(task.epsilon * root);
  const float beta1 = float(task.beta1), rest1 = float((1 - task.beta1) * task.gradient_scale);
  const float beta2 = float(task.beta2);
  const float rest2 = float((1 - task.beta2) * task.gradient_scale * task.gradient_scale);
  for_each_vector(task.count, [&](auto d, int64_t i) HWY_ATTR {
    const auto g = hn::LoadU(d, task.gradient + i);
    const auto m = hn::MulAdd(hn::Set(d, beta1), hn::LoadU(d, task.first_moment + i),
                              hn::Mul(hn::Set(d, rest1), g));
    const auto v = hn::MulAdd(hn::Set(d, beta2), hn::LoadU(d, task.second_moment + i),
                              hn::Mul(hn::Set(d, rest2), hn::Mul(g, g)));
    hn::StoreU(m, d, task.first_moment + i);
    hn::StoreU(v, d, task.second_moment + i);
    const auto step =
        hn::Div(hn::Mul(hn::Set(d, rate), m), hn::Add(hn::Sqrt(v), hn::Set(d, epsilon)));
    const auto w = hn::LoadU(d, task.weights + i);
    hn::StoreU(hn::MulSub(w, hn::Set(d, kept), step), d, task.weights + i);
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace longnet
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace longnet {

HWY_EXPORT(layer_norm_on_target);
HWY_EXPORT(layer_norm_backward_on_target);
HWY_EXPORT(gelu_on_target);
HWY_EXPORT(gelu_backward_on_target);
HWY_EXPORT(rotate_on_target);
HWY_EXPORT(add_matrix_on_target);
HWY_EXPORT(add_columns_on_target);
HWY_EXPORT(add_to_rows_on_target);
HWY_EXPORT(sum_squares_on_target);
HWY_EXPORT(cross_entropy_on_target);
HWY_EXPORT(update_on_target);

void layer_norm_rows(const LayerNormTask& task) {
  HWY_DYNAMIC_DISPATCH(layer_norm_on_target)(task);
}
void layer_norm_backward_rows(const LayerNormBackwardTask& task) {
  HWY_DYNAMIC_DISPATCH(layer_norm_backward_on_target)(task);
}
void gelu_rows(const Matrix& x, const Matrix& y) { HWY_DYNAMIC_DISPATCH(gelu_on_target)(x, y); }
void gelu_backward_rows(const Matrix& x, const Matrix& grad_y, const Matrix& grad_x) {
  HWY_DYNAMIC_DISPATCH(gelu_backward_on_target)(x, grad_y, grad_x);
}
void rotate_rows(const RotateTask& task) { HWY_DYNAMIC_DISPATCH(rotate_on_target)(task); }
void add_matrix(const Matrix& x, const Matrix& y) {
  HWY_DYNAMIC_DISPATCH(add_matrix_on_target)(x, y);
}
void add_columns_of(const Matrix& x, float* into) {
  HWY_DYNAMIC_DISPATCH(add_columns_on_target)(x, into);
}
void add_to_rows(const int32_t* rows, const Matrix& x, const Matrix& table) {
  HWY_DYNAMIC_DISPATCH(add_to_rows_on_target)(rows, x, table);
}
double cross_entropy_rows(const CrossEntropyTask& task) {
  return HWY_DYNAMIC_DISPATCH(cross_entropy_on_target)(task);
}
void update_weights(const UpdateTask& task) { HWY_DYNAMIC_DISPATCH(update_on_target)(task); }
double sum_squares(const float* x, int64_t count) {
  return HWY_DYNAMIC_DISPATCH(sum_squares_on_target)(x, count);
}

}  // namespace longnet
#endif  // HWY_ONCE
