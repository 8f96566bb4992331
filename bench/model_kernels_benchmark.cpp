// Speed of the cpu kernels of a model's layers, part of kernels_benchmark.
//
// gemm   gflops, share_of_peak, interleaved_p50 and _p90 as of attend. Transpositions are those of
//        training: NN forward, NT gradients of the input, TN gradients of weights, which are added.
// rows   row-wise functions of `rows` x `cols` numbers that come from memory. bytes_per_second:
//        each number of a matrix that a function needs is read once, and each that it changes is
//        written once; a table of 256 rows stays in a cache.
//        copy_p50, _p90: percentiles of the ratio to the bytes per second of a copy (memcpy of the
//        same array) by the same thread right after each iteration.
#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "benchmark_machine.h"
#include "core/check.h"
#include "core/random.h"
#include "core/tagged_memory.h"
#include "kernels/model_kernel.h"

namespace longnet {
namespace {

// The cpu kernel, its workspace, and matrices to work on.
class ModelSetup {
 public:
  explicit ModelSetup(int threads)
      : kernel_(make_cpu_model_kernel()),
        workspace_(ledger_, kWorkspaceTag, kernel_->workspace_bytes(threads)) {}

  // Small numbers of both signs.
  Matrix matrix(int64_t rows, int64_t cols, DType dtype = DType::kFloat32) {
    buffers_.emplace_back(ledger_, kWorkspaceTag, rows * cols * dtype_bytes(dtype));
    const Matrix x{buffers_.back().data(), rows, cols, cols, dtype};
    for (int64_t i = 0; i < rows * cols; ++i) {
      const float value = float(i * 7919 % 1000) / 250.0f - 2.0f;
      if (dtype == DType::kFloat32)
        static_cast<float*>(x.data)[i] = value;
      else
        static_cast<uint16_t*>(x.data)[i] = bf16_bits(value);
    }
    return x;
  }
  void run(const ModelTask& task, int threads = 1) const {
    kernel_->run(task, threads, workspace_.bytes());
  }

 private:
  std::unique_ptr<ModelKernel> kernel_;
  MemoryLedger ledger_;
  TaggedBuffer workspace_;
  std::vector<TaggedBuffer> buffers_;
};

struct GemmPoint {
  int64_t m = 2048, n = 3072, k = 768;
  std::string way = "NN";
  DType dtype = DType::kFloat32;  // type of a and b
  std::string target = {};        // empty: the best
  int threads = 1;
};

std::string name_of(const GemmPoint& p) {
  std::string name =
      concat("gemm/", to_string(p.dtype), "/", p.way, "/m:", p.m, "/n:", p.n, "/k:", p.k);
  if (!p.target.empty()) name += "/simd:" + p.target;
  return name + concat("/threads:", p.threads);
}

void run_gemm(benchmark::State& state, const GemmPoint& p, const Machine& machine) {
  const std::string target = p.target.empty() ? simd_target() : p.target;
  const ScopedSimdTarget use(target);
  ModelSetup setup(p.threads);
  const bool transpose_a = p.way[0] == 'T', transpose_b = p.way[1] == 'T';
  const GemmTask task{
      .a = transpose_a ? setup.matrix(p.k, p.m, p.dtype) : setup.matrix(p.m, p.k, p.dtype),
      .b = transpose_b ? setup.matrix(p.n, p.k, p.dtype) : setup.matrix(p.k, p.n, p.dtype),
      .c = setup.matrix(p.m, p.n),
      .transpose_a = transpose_a,
      .transpose_b = transpose_b,
      .accumulate = transpose_a};
  const double peak = p.threads == 1 ? machine.flops_per_core.at(target) : machine.flops_all;
  run_beside_fma(state, 2.0 * double(p.m) * double(p.n) * double(p.k), p.threads, peak,
                 [&] { setup.run(task, p.threads); });
}

std::vector<GemmPoint> gemm_points(const Machine& machine) {
  std::vector<GemmPoint> points;
  std::vector<std::string> targets = {""};
  for (const std::string& target : simd_targets())
    if (target != simd_target() && target != "SCALAR") targets.push_back(target);
  for (const std::string& target : targets) {
    points.push_back({.way = "NN", .target = target});
    points.push_back({.way = "NT", .target = target});
    points.push_back({.m = 768, .n = 3072, .k = 2048, .way = "TN", .target = target});
  }
  for (const char* way : {"NN", "NT"}) points.push_back({.way = way, .dtype = DType::kBFloat16});
  points.push_back({.m = 768, .n = 3072, .k = 2048, .way = "TN", .dtype = DType::kBFloat16});
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16})
    points.push_back({.n = 768, .k = 3072, .dtype = dtype});
  points.push_back({.m = 4096, .n = 768, .k = 192});
  points.push_back({.m = 192, .n = 768, .k = 4096, .way = "TN"});
  if (machine.cores > 1)
    for (const char* way : {"NN", "NT", "TN"})
      points.push_back({.way = way, .threads = machine.cores});
  return points;
}

// Matrices of one shape, from and to which rows go, and what else row-wise functions take.
struct RowSetup : ModelSetup {
  RowSetup(int64_t rows, int64_t cols) : ModelSetup(1) {
    for (Matrix* m : {&x, &y, &z, &more}) *m = matrix(rows, cols);
    std::fill_n(z.row(0), rows * cols, 1.0f);  // update: a mean of squares
    const Matrix vectors = matrix(4, cols);
    gain = vectors.row(0), bias = vectors.row(1);
    grad_gain = vectors.row(2), grad_bias = vectors.row(3);
    table = matrix(256, cols);
    for (int64_t i = 0; i < rows; ++i) tokens.push_back(int32_t(i * 37 % table.rows));
  }

  Matrix x, y, z, more, table;
  float *gain, *bias, *grad_gain, *grad_bias;
  std::vector<int32_t> tokens;
  float schedule[2] = {1, 1e-3f};
  double sum = 0;
};

struct RowFunction {
  const char* name;
  int64_t numbers_moved;  // read and written, for each of a matrix
  ModelTask (*task)(RowSetup&);
};

constexpr RowFunction kRowFunctions[] = {
    {"layer_norm", 2,
     [](RowSetup& s) -> ModelTask {
       return LayerNormTask{s.x, s.y, s.gain, s.bias};
     }},
    {"layer_norm_backward", 3,
     [](RowSetup& s) -> ModelTask {
       return LayerNormBackwardTask{s.x, s.y, s.z, s.gain, s.grad_gain, s.grad_bias};
     }},
    {"gelu", 2,
     [](RowSetup& s) -> ModelTask {
       return GeluTask{s.x, s.y};
     }},
    {"gelu_backward", 3,
     [](RowSetup& s) -> ModelTask {
       return GeluBackwardTask{s.x, s.y, s.z};
     }},
    {"rotate", 2,
     [](RowSetup& s) -> ModelTask {
       return RotateTask{.x = s.x, .positions = {0, 1, s.x.rows}, .head_dim = 64};
     }},
    {"add", 3,
     [](RowSetup& s) -> ModelTask {
       return AddTask{s.x, s.y};
     }},
    {"add_columns", 1,
     [](RowSetup& s) -> ModelTask {
       return AddColumnsTask{s.x, s.grad_bias};
     }},
    {"embed", 1,
     [](RowSetup& s) -> ModelTask {
       return EmbedTask{s.tokens.data(), s.table, s.x};
     }},
    {"embed_backward", 1,
     [](RowSetup& s) -> ModelTask {
       return EmbedBackwardTask{s.tokens.data(), s.x, s.table};
     }},
    {"cross_entropy", 2,
     [](RowSetup& s) -> ModelTask {
       return CrossEntropyTask{s.x, s.tokens.data(), 1, &s.sum};
     }},
    {"sum_of_squares", 1,
     [](RowSetup& s) -> ModelTask {
       return SumOfSquaresTask{s.x.row(0), s.x.rows * s.x.cols, &s.sum};
     }},
    {"update", 7,
     [](RowSetup& s) -> ModelTask {
       return UpdateTask{.weights = s.x.row(0),
                         .first_moment = s.y.row(0),
                         .second_moment = s.z.row(0),
                         .gradient = s.more.row(0),
                         .count = s.x.rows * s.x.cols,
                         .schedule = s.schedule,
                         .decay = 0.1};
     }},
};

void run_rows(benchmark::State& state, const RowFunction& function, int64_t rows, int64_t cols,
              const Machine& machine) {
  RowSetup setup(rows, cols);
  const ModelTask task = function.task(setup);
  const Matrix from = setup.matrix(rows, cols), to = setup.matrix(rows, cols);
  const int64_t bytes = rows * cols * int64_t(sizeof(float));
  const int64_t moved = function.numbers_moved * bytes;
  InterleavedShares shares;
  for (auto _ : state) {
    const double seconds = seconds_of([&] { setup.run(task); });
    state.PauseTiming();
    const double copy_seconds = seconds_of([&] {
      std::memcpy(to.data, from.data, size_t(bytes));
      benchmark::ClobberMemory();
    });
    shares.add(double(moved) / seconds / (2.0 * double(bytes) / copy_seconds));
    state.ResumeTiming();
  }
  shares.report(state, "copy");
  count_bytes(state, moved, machine);
}

}  // namespace

void register_model_kernels(const Machine& machine) {
  for (const GemmPoint& p : gemm_points(machine))
    add_benchmark(name_of(p),
                  [p, &machine](benchmark::State& state) { run_gemm(state, p, machine); });
  for (const int64_t cols : {768, 3072}) {
    const int64_t rows = 12'582'912 / cols;  // 48 MB: a last-level cache holds less
    for (const RowFunction& f : kRowFunctions)
      add_benchmark(
          concat("rows/", f.name, "/rows:", rows, "/cols:", cols),
          [=, &machine](benchmark::State& state) { run_rows(state, f, rows, cols, machine); });
  }
}

}  // namespace longnet
