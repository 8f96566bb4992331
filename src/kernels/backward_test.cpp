// The backward pass of the reference kernel against central differences in double.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "core/random.h"
#include "kernels/attention_kernel.h"
#include "kernels/cpu/machine_peak.h"
#include "kernels/testing/attend_case.h"
#include "kernels/testing/packed_branch.h"

namespace longnet {
namespace {

constexpr double kAbsent = -std::numeric_limits<double>::infinity();

// kLseDetached: the weights of branches are constants.
enum class Mixture { kLse, kMean, kSum, kLseDetached };

struct Branch {
  int64_t w, r;
};

// Dilated attention over packed tensors: Q, dO [tokens][heads][d]; K, V [tokens][kv_heads][d].
struct Attention {
  int64_t tokens = 12, heads = 4, kv_heads = 2, d = 8;
  std::vector<Branch> branches;
  bool causal = false;
  Mixture mixture = Mixture::kLse;
  DType dtype = DType::kFloat32;

  double scale() const { return mixture == Mixture::kMean ? 1.0 / double(branches.size()) : 1.0; }
  int64_t row(int64_t token, int64_t head) const { return token * heads + head; }
  int64_t kv_row(int64_t token, int64_t head) const {
    return token * kv_heads + head * kv_heads / heads;
  }
};

struct Tensors {
  std::vector<double> q, kv, grad_out;  // kv: all of K, then all of V
};

// O and LSE of each row: of one branch, or of the mixture.
struct Output {
  std::vector<double> o, lse;
};

Output branch_output(const Attention& a, const Branch& b, const Tensors& x) {
  Output out{std::vector<double>(size_t(a.tokens * a.heads * a.d), 0.0),
             std::vector<double>(size_t(a.tokens * a.heads), kAbsent)};
  const int64_t values = a.tokens * a.kv_heads * a.d;
  for (int64_t t = 0; t < a.tokens; ++t)
    for (int64_t h = 0; h < a.heads; ++h) {
      if (t % b.w % b.r != h % b.r) continue;
      double norm = 0;
      double* const o = &out.o[size_t(a.row(t, h) * a.d)];
      for (int64_t j = t / b.w * b.w; j < (a.causal ? t + 1 : (t / b.w + 1) * b.w); ++j) {
        if (j % b.w % b.r != h % b.r) continue;
        double score = 0;
        const double* const k = &x.kv[size_t(a.kv_row(j, h) * a.d)];
        for (int64_t c = 0; c < a.d; ++c) score += x.q[size_t(a.row(t, h) * a.d + c)] * k[c];
        const double weight = std::exp(score / std::sqrt(double(a.d)));
        norm += weight;
        for (int64_t c = 0; c < a.d; ++c) o[c] += weight * k[values + c];
      }
      for (int64_t c = 0; c < a.d; ++c) o[c] /= norm;
      out.lse[size_t(a.row(t, h))] = std::log(norm);
    }
  return out;
}

// The output at `x`; the branches' weights are those at `weighed`.
Output mixed_output(const Attention& a, const Tensors& x, const Tensors& weighed) {
  Output sum{std::vector<double>(x.q.size(), 0.0), std::vector<double>(x.q.size() / size_t(a.d))};
  std::vector<double> norm(sum.lse.size(), 0.0);
  const bool by_lse = a.mixture == Mixture::kLse || a.mixture == Mixture::kLseDetached;
  for (const Branch& b : a.branches) {
    const Output part = branch_output(a, b, x);
    const std::vector<double> lse = &weighed == &x ? part.lse : branch_output(a, b, weighed).lse;
    for (size_t i = 0; i < norm.size(); ++i) {
      norm[i] += std::exp(lse[i]);
      const double weight = by_lse ? std::exp(lse[i]) : a.scale();
      for (size_t c = i * size_t(a.d); c < (i + 1) * size_t(a.d); ++c)
        sum.o[c] += weight * part.o[c];
    }
  }
  for (size_t i = 0; i < norm.size(); ++i) {
    sum.lse[i] = std::log(norm[i]);
    if (!by_lse || norm[i] == 0) continue;
    for (size_t c = i * size_t(a.d); c < (i + 1) * size_t(a.d); ++c) sum.o[c] /= norm[i];
  }
  return sum;
}

double loss(const Attention& a, const Tensors& x, const Tensors& weighed) {
  const Output out = mixed_output(a, x, a.mixture == Mixture::kLseDetached ? weighed : x);
  double sum = 0;
  for (size_t i = 0; i < out.o.size(); ++i) sum += x.grad_out[i] * out.o[i];
  return sum;
}

std::vector<double> central_differences(const Attention& a, Tensors x,
                                        std::vector<double> Tensors::*of) {
  constexpr double kStep = 1e-5;
  const Tensors weighed = x;
  std::vector<double> gradient;
  for (double& value : x.*of) {
    const double at = value;
    value = at + kStep;
    const double more = loss(a, x, weighed);
    value = at - kStep;
    gradient.push_back((more - loss(a, x, weighed)) / (2 * kStep));
    value = at;
  }
  return gradient;
}

// A tensor in its storage type, and what is stored there.
struct Stored {
  std::vector<float> fp32;
  std::vector<uint16_t> bf16;
  const void* data() const {
    return bf16.empty() ? static_cast<const void*>(fp32.data()) : bf16.data();
  }
};

Stored store(std::vector<double>& values, DType dtype) {
  Stored out;
  for (double& x : values) {
    if (dtype == DType::kBFloat16) out.bf16.push_back(bf16_bits(float(x)));
    out.fp32.push_back(dtype == DType::kBFloat16 ? bf16_value(out.bf16.back()) : float(x));
    x = out.fp32.back();
  }
  return out;
}

std::vector<double> random_values(uint64_t seed, int64_t rows, int64_t d) {
  std::vector<double> out;
  for (int64_t i = 0; i < rows; ++i) {
    std::vector<float> row(static_cast<size_t>(d));
    generate_row({seed, Tensor::kQuery, i, 0}, d, row.data());
    out.insert(out.end(), row.begin(), row.end());
  }
  return out;
}

struct Gradients {
  std::vector<float> q, kv;
};

// Returns the gradients by the kernel: delta from O and LSE, then each branch's part.
Gradients by_kernel(const Attention& a, const Tensors& x, const Stored& q, const Stored& kv,
                    const Stored& grad_out) {
  const auto kernel = make_reference_kernel();
  const AttendOptions options{
      .head_dim = a.d, .dtype = a.dtype, .causal = a.causal, .output_scale = float(a.scale())};
  Gradients out{std::vector<float>(x.q.size()), std::vector<float>(x.kv.size())};
  for (const Branch& b : a.branches) {
    const Output merged = mixed_output(a, x, x);
    Output from = a.mixture == Mixture::kLse ? merged : branch_output(a, b, x);
    if (a.mixture == Mixture::kLseDetached) from.lse = merged.lse;
    std::vector<float> o, lse(from.lse.begin(), from.lse.end()), statistics(2 * lse.size());
    for (const double value : from.o) o.push_back(float(value * a.scale()));
    const DeltaTask rows{.out = {o.data(), lse.data(), a.d, 1},
                         .grad_out = grad_out.data(),
                         .statistics = statistics.data(),
                         .grad_out_stride = a.d,
                         .rows = std::ssize(lse)};
    kernel->delta({&rows, 1}, options, 1);
    KvLists lists;
    const int64_t element = dtype_bytes(a.dtype);
    const PackedAttention packed{
        .q = q.data(),
        .k = kv.data(),
        .v = static_cast<const std::byte*>(kv.data()) + std::ssize(x.kv) / 2 * element,
        .o = out.q.data(),
        .lse = statistics.data(),
        .tokens = a.tokens,
        .heads = a.heads,
        .kv_heads = a.kv_heads,
        .head_dim = a.d,
        .element_bytes = element};
    kernel->attend_backward(backward_grids(packed, grad_out.data(), out.kv.data(), b.w, b.r, lists),
                            options, 1, {});
  }
  return out;
}

double relative_l2(const std::vector<float>& a, const std::vector<double>& b) {
  double difference = 0, norm = 0;
  for (size_t i = 0; i < b.size(); ++i) {
    difference += (a[i] - b[i]) * (a[i] - b[i]);
    norm += b[i] * b[i];
  }
  return std::sqrt(difference / norm);
}

void expect_exact(const Attention& a) {
  Tensors x{random_values(1, a.tokens * a.heads, a.d),
            random_values(2, 2 * a.tokens * a.kv_heads, a.d),
            random_values(3, a.tokens * a.heads, a.d)};
  const Stored q = store(x.q, a.dtype), kv = store(x.kv, a.dtype),
               grad_out = store(x.grad_out, a.dtype);
  const Gradients gradients = by_kernel(a, x, q, kv, grad_out);
  const auto where = [&] {
    return concat("causal=", a.causal, " mixture ", int(a.mixture), " ", to_string(a.dtype),
                  " H=", a.heads, "/", a.kv_heads, " r=", a.branches.back().r);
  };
  EXPECT_LE(relative_l2(gradients.q, central_differences(a, x, &Tensors::q)), 3e-7) << where();
  EXPECT_LE(relative_l2(gradients.kv, central_differences(a, x, &Tensors::kv)), 3e-7) << where();
}

TEST(Backward, EveryMixtureAgainstCentralDifferences) {
  // Branches that overlap; rows that none covers (r = 3 and r = 4 alone); one branch of all rows.
  for (const std::vector<Branch>& branches :
       {std::vector<Branch>{{4, 1}, {12, 3}}, {{6, 3}, {12, 4}}, {{12, 1}}})
    for (const bool causal : {false, true})
      for (const Mixture mixture :
           {Mixture::kLse, Mixture::kMean, Mixture::kSum, Mixture::kLseDetached})
        for (const int64_t kv_heads : {4, 2, 1})
          for (const DType dtype : {DType::kFloat32, DType::kBFloat16})
            expect_exact({.kv_heads = kv_heads,
                          .branches = branches,
                          .causal = causal,
                          .mixture = mixture,
                          .dtype = dtype});
}

TEST(Backward, OddShapes) {
  expect_exact({.tokens = 11, .heads = 3, .kv_heads = 3, .d = 12, .branches = {{11, 2}, {11, 5}}});
  expect_exact({.tokens = 2, .heads = 2, .kv_heads = 1, .branches = {{2, 1}, {2, 2}}});
  expect_exact({.tokens = 9,
                .heads = 5,
                .kv_heads = 1,
                .d = 24,
                .branches = {{3, 2}, {9, 1}},
                .causal = true});
}

// A row without keys in the forward pass takes no part, whatever keys a task lists for it.
void expect_nothing_of_absent_rows(const AttentionKernel& kernel) {
  const std::vector<float> rows(3 * 8, 1.0f);
  std::vector<float> statistics{-INFINITY, 0, 0.5f, 0.25f}, grad_q(16, 0.0f), grad_kv(32, 0.0f);
  const std::vector<float> kv(32, 0.5f);
  const KvRun run{.k = kv.data(), .v = kv.data() + 16, .row_stride = 8, .rows = 2};
  BackwardGrid grid{.attend = {.task = {.q = {.q = rows.data(), .row_stride = 8, .rows = 2},
                                        .kv = {&run, 1},
                                        .out = {}}},
                    .grad_out = rows.data(),
                    .grad_q = grad_q.data(),
                    .statistics = statistics.data(),
                    .keys = kv.data(),
                    .grad_keys = grad_kv.data()};
  const PoisonedWorkspace workspace(kernel.backward_workspace_bytes({.head_dim = 8}, 1));
  kernel.attend_backward({&grid, 1}, {.head_dim = 8}, 1, workspace.bytes());
  EXPECT_EQ(std::vector<float>(grad_q.begin(), grad_q.begin() + 8), std::vector<float>(8, 0.0f));
  EXPECT_GT(grad_q[8], 0.0f);
  const float p = std::exp(4.0f / std::sqrt(8.0f) - 0.5f);  // the other row's alone
  EXPECT_NEAR(grad_kv[16], p, 1e-6f * p);
  const float grad_k = p * (4.0f - 0.25f) / std::sqrt(8.0f);
  EXPECT_NEAR(grad_kv[0], grad_k, 1e-6f * grad_k);
}

TEST(Backward, AnAbsentRowHasNoGradient) {
  for (const std::string& kernel : names_of(kernels()))
    for (const std::string& target : simd_targets()) {
      SCOPED_TRACE(kernel + " " + target);
      const ScopedSimdTarget use(target);
      const auto made = make_kernel(kernel);
      if (made->why_unsupported({}).empty()) expect_nothing_of_absent_rows(*made);
    }
}

}  // namespace
}  // namespace longnet
