// Cross entropy, squared norms, AdamW.
#include "kernels/cuda/model_views.cuh"

namespace longnet {
namespace {

constexpr int kLongRow = 512;            // threads of a long row
constexpr int64_t kShortColumns = 1024;  // the most of a row that a warp has

// *into += the sum of `count` partial sums. One block.
__global__ void __launch_bounds__(kThreads)
    sum_doubles_kernel(const double* partial, int64_t count, double* into) {
  __shared__ TeamPlaces<kThreads> shared;
  double sum = 0;
  for (int64_t i = threadIdx.x; i < count; i += kThreads) sum += partial[i];
  sum = team_sum(sum, shared);
  if (threadIdx.x == 0) *into += sum;
}
void then_sum_doubles(Prepared& work, const double* partial, int64_t count, double* into) {
  then_launch(work, count > 0 ? 1 : 0, kThreads, 0, "launch of sums", sum_doubles_kernel, partial,
              count, into);
}

template <class View>
__global__ void __launch_bounds__(kThreads)
    sum_squares_kernel(View x, int64_t groups, double* partial) {
  __shared__ TeamPlaces<kThreads> shared;
  double sum = 0;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < groups;
       i += int64_t{gridDim.x} * kThreads) {
    float v[View::kWidth];
    load_group(x, 0, int(i), v);
#pragma unroll
    for (int k = 0; k < View::kWidth; ++k) sum = fma(double(v[k]), double(v[k]), sum);
  }
  sum = team_sum(sum, shared);
  if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}

// ---- cross entropy ----

struct LossRows {
  int64_t rows, of_block;
  int groups;
  const int32_t* targets;
  float scale;
  double* partial;  // one per block
};

// The largest number, and the sum of exp(x - largest).
struct SoftmaxSum {
  float largest = -INFINITY, sum = 0;
  template <int kWidth>
  __device__ void add(const float (&x)[kWidth]) {
    float most = x[0];
#pragma unroll
    for (int k = 1; k < kWidth; ++k) most = fmaxf(most, x[k]);
    if (most == -INFINITY && largest == -INFINITY) return;  // their difference is no number
    if (most > largest) {
      sum *= expf(largest - most);
      largest = most;
    }
#pragma unroll
    for (int k = 0; k < kWidth; ++k) sum += expf(x[k] - largest);
  }
};

// A team, a warp or a block, has a row: it reads it twice, the second time mostly from the caches.
template <class View, int kTeam>
__global__ void __launch_bounds__(kTeam == kWarp ? kThreads : kTeam)
    cross_entropy_kernel(View logits, LossRows task) {
  constexpr int kTeams = kTeam == kWarp ? kThreads / kWarp : 1;
  __shared__ TeamPlaces<kTeam> shared;
  __shared__ double losses[kTeams];
  const int team = int(threadIdx.x) / kTeam, at = int(threadIdx.x) % kTeam;
  const int64_t begin = blockIdx.x * task.of_block, left = task.rows - begin;
  const int64_t end = begin + (left < task.of_block ? left : task.of_block);
  double loss = 0;
  for (int64_t row = begin + team; row < end; row += kTeams) {
    const int64_t target = task.targets[row];
    float v[View::kWidth];
    SoftmaxSum own;
    float of_target = 0;  // its logit, of the thread that has it
    for (int group = at; group < task.groups; group += kTeam) {
      load_group(logits, row, group, v);
      own.add(v);
#pragma unroll
      for (int k = 0; k < View::kWidth; ++k)
        if (target == int64_t{group} * View::kWidth + k) of_target = v[k];
    }
    const float largest =
        over_team(own.largest, shared, [](float a, float b) { return fmaxf(a, b); });
    const float weight = own.sum > 0 ? expf(own.largest - largest) : 0.0f;
    const float2 all = team_sum(float2{own.sum * weight, of_target}, shared);
    const float share = target < 0 ? 0.0f : task.scale / all.x;
    if (kTeam == kWarp) __syncwarp();  // a lane writes what others have read
    for (int group = at; group < task.groups; group += kTeam) {
      load_group(logits, row, group, v);
#pragma unroll
      for (int k = 0; k < View::kWidth; ++k) {
        v[k] = target < 0 ? 0.0f : expf(v[k] - largest) * share;
        if (target == int64_t{group} * View::kWidth + k) v[k] -= task.scale;
      }
      logits.store(row, group, v);
    }
    const bool outside = target >= int64_t{task.groups} * View::kWidth;
    if (target >= 0) loss += outside ? NAN : double(logf(all.x)) + double(largest) - double(all.y);
  }
  if (at == 0) losses[team] = loss;
  __syncthreads();
  if (threadIdx.x > 0) return;
  for (int t = 1; t < kTeams; ++t) loss += losses[t];
  task.partial[blockIdx.x] = loss;
}

// ---- AdamW ----

struct UpdateShape {
  const float* schedule;
  const double* squares;
  int64_t pieces;
  double clip_norm, decay, beta1, beta2, epsilon;
};

__device__ double power(double base, int64_t exponent) {
  double result = 1;
  for (; exponent > 0; exponent /= 2, base *= base)
    if (exponent % 2 == 1) result *= base;
  return result;
}

// One thread: the factors are the same for all weights.
__global__ void update_factors_kernel(UpdateShape task, UpdateFactors* into) {
  if (threadIdx.x > 0) return;
  double squares = 0;
  for (int64_t i = 0; i < task.pieces; ++i) squares += task.squares[2 * i];
  const double norm = sqrt(squares);
  const double clipping = task.clip_norm / (norm > task.clip_norm ? norm : task.clip_norm);
  const auto step = int64_t(task.schedule[0]);
  const double learning_rate = double(task.schedule[1]);
  const double root = sqrt(1 - power(task.beta2, step));
  *into = {.clipping = float(clipping),
           .kept = float(1 - learning_rate * task.decay),
           .rate = float(learning_rate * root / (1 - power(task.beta1, step))),
           .epsilon = float(task.epsilon * root),
           .rest1 = float(1 - task.beta1),
           .rest2 = float(1 - task.beta2)};
}

template <class View>
__global__ void __launch_bounds__(kThreads)
    update_kernel(View weights, View first, View second, View gradient, unsigned groups,
                  float beta1, float beta2, const UpdateFactors* factors) {
  const unsigned i = blockIdx.x * kThreads + threadIdx.x;
  if (i >= groups) return;
  float w[View::kWidth], m[View::kWidth], v[View::kWidth], g[View::kWidth];
  load_group(weights, 0, int(i), w);
  load_group(first, 0, int(i), m);
  load_group(second, 0, int(i), v);
  load_group(gradient, 0, int(i), g);
  const UpdateFactors f = *factors;
#pragma unroll
  for (int k = 0; k < View::kWidth; ++k) {
    g[k] *= f.clipping;  // before its square, which may have no float
    m[k] = fmaf(beta1, m[k], f.rest1 * g[k]);
    v[k] = fmaf(beta2, v[k], f.rest2 * (g[k] * g[k]));
    w[k] = fmaf(w[k], f.kept, -(f.rate * m[k] / (sqrtf(v[k]) + f.epsilon)));
  }
  first.store(0, int(i), m);
  second.store(0, int(i), v);
  weights.store(0, int(i), w);
}

}  // namespace

void prepare_task(const SumOfSquaresTask& task, std::byte* workspace, Prepared& work) {
  auto* const partial = reinterpret_cast<double*>(workspace);
  const Matrix x = row_of(task.x, task.count);
  const auto sum = [&]<class View>(View view) {
    const int64_t groups = task.count / View::kWidth;
    check(groups < int64_t{1} << 31, "sum of squares of ", task.count, " numbers");
    const int64_t blocks = std::min(kMostSums, ceil_div(groups, int64_t{kThreads}));
    then_launch(work, blocks, kThreads, 0, "launch of sum_of_squares", sum_squares_kernel<View>,
                view, groups, partial);
    then_sum_doubles(work, partial, blocks, task.into);
  };
  fits_eights(x) ? sum(WideFloats(x)) : sum(Ones(x));
}

void prepare_task(const CrossEntropyTask& task, std::byte* workspace, Prepared& work) {
  const Matrix& logits = task.logits;
  auto* const partial = reinterpret_cast<double*>(workspace);
  const bool is_short = logits.cols <= kShortColumns;
  const int64_t of_block =
      std::max<int64_t>(is_short ? kThreads / kWarp : 1, ceil_div(logits.rows, kMostLosses));
  const int64_t blocks = ceil_div(logits.rows, of_block);
  const auto loss = [&]<class View>(View view) {
    const LossRows rows{.rows = logits.rows,
                        .of_block = of_block,
                        .groups = int(logits.cols / View::kWidth),
                        .targets = task.targets,
                        .scale = task.scale,
                        .partial = partial};
    if (is_short)
      then_launch(work, blocks, kThreads, 0, "launch of cross_entropy",
                  cross_entropy_kernel<View, kWarp>, view, rows);
    else
      then_launch(work, blocks, kLongRow, 0, "launch of cross_entropy",
                  cross_entropy_kernel<View, kLongRow>, view, rows);
  };
  fits_eights(logits) ? loss(WideFloats(logits)) : loss(Ones(logits));
  then_sum_doubles(work, partial, blocks, task.loss);
}

void prepare_task(const UpdateTask& task, std::byte* workspace, Prepared& work) {
  if (task.count == 0) return;
  auto* const factors = reinterpret_cast<UpdateFactors*>(workspace);
  then_launch(work, 1, kWarp, 0, "launch of update_factors", update_factors_kernel,
              UpdateShape{.schedule = task.schedule,
                          .squares = task.squares,
                          .pieces = task.pieces,
                          .clip_norm = task.clip_norm,
                          .decay = task.decay,
                          .beta1 = task.beta1,
                          .beta2 = task.beta2,
                          .epsilon = task.epsilon},
              factors);
  const auto row = [&](const float* at) { return row_of(at, task.count); };
  const Matrix w = row(task.weights), m = row(task.first_moment), v = row(task.second_moment),
               g = row(task.gradient);
  const auto update = [&]<class View>(View weights, View first, View second, View gradient) {
    const int64_t groups = task.count / View::kWidth;
    check(groups < int64_t{1} << 31, "update of ", task.count, " weights");
    then_launch(work, ceil_div(groups, int64_t{kThreads}), kThreads, 0, "launch of update",
                update_kernel<View>, weights, first, second, gradient, unsigned(groups),
                float(task.beta1), float(task.beta2), factors);
  };
  if (fit_eights({w, m, v, g}))
    update(WideFloats(w), WideFloats(m), WideFloats(v), WideFloats(g));
  else
    update(Ones(w), Ones(m), Ones(v), Ones(g));
}

}  // namespace longnet
