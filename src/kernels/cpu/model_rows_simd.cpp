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

template <class Storage>
void gelu(const Matrix& x, const Matrix& y) {
  for (int64_t i = 0; i < x.rows; ++i) {
    const Storage* from = row_of<Storage>(x, i);
    Storage* to = row_of<Storage>(y, i);
    for_each_vector(x.cols, [&](auto d, int64_t j) HWY_ATTR {
      const auto v = load_floats(d, from + j);
      store_floats(hn::Mul(v, normal_below(d, v, exp_of_half_square(d, v))), d, to + j);
    });
  }
}

void gelu_on_target(const Matrix& x, const Matrix& y) {
  is_wide(x) ? gelu<float>(x, y) : gelu<Bf16Bits>(x, y);
}

template <class Storage>
void gelu_backward(const Matrix& x, const Matrix& grad_y, const Matrix& grad_x) {
  for (int64_t i = 0; i < x.rows; ++i) {
    const Storage *from = row_of<Storage>(x, i), *grad = row_of<Storage>(grad_y, i);
    Storage* to = row_of<Storage>(grad_x, i);
    for_each_vector(x.cols, [&](auto d, int64_t j) HWY_ATTR {
      const auto v = load_floats(d, from + j);
      const auto e = exp_of_half_square(d, v);
      const auto density = hn::Mul(e, hn::Set(d, 0.39894228f));  // 1 / sqrt(2 pi)
      const auto slope = hn::MulAdd(v, density, normal_below(d, v, e));
      store_floats(hn::Mul(load_floats(d, grad + j), slope), d, to + j);
    });
  }
}

void gelu_backward_on_target(const Matrix& x, const Matrix& grad_y, const Matrix& grad_x) {
  is_wide(x) ? gelu_backward<float>(x, grad_y, grad_x) : gelu_backward<Bf16Bits>(x, grad_y, grad_x);
}

// ---- rotary positions ----

// Turns pairs of one row: [head_dim] cosines and sines, each twice, the first of a pair negated.
template <class Storage>
HWY_INLINE void turn_row(Storage* x, int64_t cols, int64_t head_dim, const float* cosine,
                         const float* sine) {
#if HWY_TARGET == HWY_SCALAR
  const OneFloat d;
  for (int64_t j = 0; j < cols; j += 2) {
    const int64_t at = j % head_dim;
    const float even = hn::GetLane(load_floats(d, x + j));
    const float odd = hn::GetLane(load_floats(d, x + j + 1));
    store_floats(hn::Set(d, even * cosine[at] + odd * sine[at]), d, x + j);
    store_floats(hn::Set(d, odd * cosine[at + 1] + even * sine[at + 1]), d, x + j + 1);
  }
#else
  const hn::CappedTag<float, 8> d8;
  for (int64_t head = 0; head < cols; head += head_dim) {
    for (int64_t j = 0; j < head_dim; j += int64_t(hn::MaxLanes(d8))) {
      const auto v = load_floats(d8, x + head + j);
      const auto turned = hn::Mul(hn::Shuffle2301(v), hn::LoadU(d8, sine + j));
      store_floats(hn::MulAdd(v, hn::LoadU(d8, cosine + j), turned), d8, x + head + j);
    }
  }
#endif
}

template <class Storage>
void rotate(const RotateTask& task) {
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
    turn_row(row_of<Storage>(task.x, i), task.x.cols, task.head_dim, cosine, sine);
  }
}

void rotate_on_target(const RotateTask& task) {
  is_wide(task.x) ? rotate<float>(task) : rotate<Bf16Bits>(task);
}

// ---- sums ----

// to += from.
template <class From, class To>
HWY_INLINE void add_row(const From* from, int64_t cols, To* to) {
  for_each_vector(cols, [&](auto d, int64_t j) HWY_ATTR {
    store_floats(hn::Add(load_floats(d, to + j), load_floats(d, from + j)), d, to + j);
  });
}

template <class Storage>
void add_matrix(const Matrix& x, const Matrix& y) {
  for (int64_t i = 0; i < x.rows; ++i)
    add_row(row_of<Storage>(x, i), x.cols, row_of<Storage>(y, i));
}

void add_matrix_on_target(const Matrix& x, const Matrix& y) {
  is_wide(x) ? add_matrix<float>(x, y) : add_matrix<Bf16Bits>(x, y);
}

// into += rows [first, first + kRows) of x, one after the other.
template <int kRows, class Storage>
HWY_INLINE void add_rows_of(const Matrix& x, int64_t first, float* into) {
  for_each_vector(x.cols, [&](auto d, int64_t j) HWY_ATTR {
    auto sum = hn::LoadU(d, into + j);
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r)
      sum = hn::Add(sum, load_floats(d, row_of<Storage>(x, first + r) + j));
    hn::StoreU(sum, d, into + j);
  });
}

// Hardware prefetchers follow four rows at a time where rows lie in different pages, and only one
// where they do not.
template <class Storage>
void add_columns(const Matrix& x, float* into) {
  constexpr int64_t kGroupRows = 64, kSums = 4096, kPage = 4096;
  const bool far_apart = x.stride * int64_t(sizeof(Storage)) >= kPage;
  alignas(64) float sums[kSums];
  for (int64_t begin = 0; begin < x.cols; begin += kSums) {
    const Matrix columns = x.columns_from(begin, HWY_MIN(x.cols - begin, kSums));
    for (int64_t first = 0; first < x.rows; first += kGroupRows) {
      std::fill(sums, sums + columns.cols, 0.0f);
      const int64_t end = HWY_MIN(first + kGroupRows, x.rows);
      int64_t i = first;
      for (; far_apart && i + 4 <= end; i += 4) add_rows_of<4, Storage>(columns, i, sums);
      for (; i < end; ++i) add_rows_of<1, Storage>(columns, i, sums);
      add_row(sums, columns.cols, into + begin);
    }
  }
}

void add_columns_on_target(const Matrix& x, float* into) {
  is_wide(x) ? add_columns<float>(x, into) : add_columns<Bf16Bits>(x, into);
}

void add_to_rows_on_target(const int32_t* rows, const Matrix& x, const Matrix& table) {
  for (int64_t i = 0; i < x.rows; ++i)
    is_wide(x) ? add_row(row_of<float>(x, i), x.cols, table.row(rows[i]))
               : add_row(row_of<Bf16Bits>(x, i), x.cols, table.row(rows[i]));
}

template <class Storage>
void copy_rows(const int32_t* rows, const Matrix& table, const Matrix& y) {
  for (int64_t i = 0; i < y.rows; ++i) {
    const float* from = table.row(rows[i]);
    Storage* to = row_of<Storage>(y, i);
    for_each_vector(y.cols, [&](auto d, int64_t j)
                                HWY_ATTR { store_floats(hn::LoadU(d, from + j), d, to + j); });
  }
}

void copy_rows_on_target(const int32_t* rows, const Matrix& table, const Matrix& y) {
  is_wide(y) ? copy_rows<float>(rows, table, y) : copy_rows<Bf16Bits>(rows, table, y);
}

}  // namespace HWY_NAMESPACE
}  // namespace longnet
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace longnet {

HWY_EXPORT(gelu_on_target);
HWY_EXPORT(gelu_backward_on_target);
HWY_EXPORT(rotate_on_target);
HWY_EXPORT(add_matrix_on_target);
HWY_EXPORT(add_columns_on_target);
HWY_EXPORT(add_to_rows_on_target);
HWY_EXPORT(copy_rows_on_target);

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
void copy_rows(const int32_t* rows, const Matrix& table, const Matrix& y) {
  HWY_DYNAMIC_DISPATCH(copy_rows_on_target)(rows, table, y);
}

}  // namespace longnet
#endif  // HWY_ONCE
