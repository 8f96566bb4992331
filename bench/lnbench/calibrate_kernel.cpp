#include "lnbench/calibrate_kernel.h"

#include <algorithm>

#include "core/random.h"
#include "core/tagged_memory.h"
#include "execute/program_executor.h"
#include "kernels/attention_kernel.h"
#include "schedule/registry.h"

namespace longnet {
namespace {

// A program reads each row once or a few times: runs take turns on as much data, beyond a core's
// own caches; warm in them, attends would seem faster than they are in programs.
constexpr int64_t kColdBytes = int64_t{24} << 20;
constexpr int64_t kHeads = 4;  // rows of one head lie this many heads apart

// One thread is timed by its own CPU time, so that a process next door costs a kernel nothing but
// the caches that it takes; several need the clock on the wall.
template <class Run>
double kernel_seconds(Communicator& comm, const KernelBudget& budget, int threads, const Run& run) {
  return quartile_seconds(comm, budget.effort, run,
                          threads == 1 ? thread_cpu_seconds : steady_seconds);
}

// `tasks` independent blocks of queries, each against keys of its own.
struct Shape {
  int64_t tasks = 1, queries = 0, keys = 0;
};

class AttendTimer {
 public:
  AttendTimer(const AttendMeasurement& m, int threads, int64_t most_rows)
      : kernel_(make_kernel("cpu")),
        options_{.head_dim = m.head_dim, .dtype = m.dtype, .causal = m.causal},
        threads_(threads),
        row_(kHeads * m.head_dim),
        rows_(most_rows),
        copies_(
            std::clamp<int64_t>(kColdBytes / (3 * most_rows * row_ * dtype_bytes(m.dtype)), 1, 64)),
        q_(ledger_, "q", copies_ * most_rows * row_ * dtype_bytes(m.dtype)),
        k_(ledger_, "k", copies_ * most_rows * row_ * dtype_bytes(m.dtype)),
        v_(ledger_, "v", copies_ * most_rows * row_ * dtype_bytes(m.dtype)),
        out_(ledger_, "out", copies_ * most_rows * (m.head_dim + 1) * int64_t(sizeof(float))),
        workspace_(ledger_, "workspace", kernel_->workspace_bytes(options_, threads)) {
    const Tensor tensors[] = {Tensor::kQuery, Tensor::kKey, Tensor::kValue};
    std::byte* const data[] = {q_.data(), k_.data(), v_.data()};
    for (int t = 0; t < 3; ++t)
      for (int64_t i = 0; i < copies_ * most_rows * kHeads; ++i) {
        const RowKey key{1, tensors[t], i / kHeads, i % kHeads};
        std::byte* const at = data[t] + i * m.head_dim * dtype_bytes(m.dtype);
        if (m.dtype == DType::kFloat32)
          generate_row(key, m.head_dim, reinterpret_cast<float*>(at));
        else
          generate_row(key, m.head_dim, reinterpret_cast<uint16_t*>(at));
      }
  }

  // The counts of all threads' tasks together; a rank's seconds are theirs over its threads.
  AttendCounts prepare(const Shape& shape) {
    tasks_.clear();
    keys_.clear();
    per_copy_ = shape.tasks * threads_;
    keys_.reserve(size_t(copies_ * per_copy_));
    AttendCounts counts;
    for (int64_t i = 0; i < copies_ * per_copy_; ++i) {
      // Queries stand at the end of their keys: under a causal mask block after block of a
      // sequence.
      const int64_t first = i / per_copy_ * rows_, task = i % per_copy_;
      const int64_t keys = options_.causal ? (task / threads_ + 1) * shape.keys : shape.keys;
      add_task(first + task * shape.queries, shape.queries,
               first + (options_.causal ? 0 : task * shape.keys), keys);
      if (first > 0) continue;
      counts.blocks += 1, counts.queries += double(shape.queries), counts.key_rows += double(keys);
      const double n = double(shape.queries);
      counts.pairs += options_.causal ? n * double(keys) - n * (n - 1) / 2 : n * double(keys);
    }
    for (size_t i = 0; i < tasks_.size(); ++i) tasks_[i].kv = {&keys_[i], 1};
    for (double* count : {&counts.blocks, &counts.queries, &counts.key_rows, &counts.pairs})
      *count /= threads_;
    return counts;
  }
  // Each time on the next copy of the data.
  void run() {
    const size_t copy = size_t(runs_++ % copies_);
    kernel_->attend(std::span(tasks_).subspan(copy * size_t(per_copy_), size_t(per_copy_)),
                    options_, threads_, workspace_.bytes());
  }

 private:
  void add_task(int64_t q, int64_t queries, int64_t k, int64_t keys) {
    const int64_t bytes = row_ * dtype_bytes(options_.dtype);
    auto* const out = reinterpret_cast<float*>(out_.data());
    const int64_t rows = out_.size() / ((options_.head_dim + 1) * int64_t(sizeof(float)));
    keys_.push_back(
        {.k = k_.data() + k * bytes, .v = v_.data() + k * bytes, .row_stride = row_, .rows = keys});
    tasks_.push_back({.q = {.q = q_.data() + q * bytes,
                            .row_stride = row_,
                            .rows = queries,
                            .first_token = keys - queries},
                      .kv = {},
                      .out = {.o = out + q * options_.head_dim,
                              .lse = out + rows * options_.head_dim + q,
                              .o_stride = options_.head_dim,
                              .lse_stride = 1}});
  }

  MemoryLedger ledger_;
  std::unique_ptr<AttentionKernel> kernel_;
  AttendOptions options_;
  int threads_;
  int64_t row_, rows_, copies_, per_copy_ = 0, runs_ = 0;
  TaggedBuffer q_, k_, v_, out_, workspace_;
  std::vector<KvRun> keys_;
  std::vector<AttendTask> tasks_;
};

std::vector<Shape> shapes_of(bool causal, bool quick) {
  if (causal && quick)
    return {{1, 512, 512}, {1, 256, 256}, {2, 256, 256}, {8, 32, 32}, {1, 128, 512}};
  if (quick) return {{1, 512, 512}, {1, 512, 128}, {1, 128, 512}, {1, 256, 256}, {8, 32, 32}};
  if (causal)
    return {{1, 2048, 2048}, {2, 2048, 2048}, {1, 1024, 1024}, {2, 512, 512},
            {4, 256, 256},   {16, 64, 64},    {1, 512, 2048},  {1, 128, 1024}};
  return {{1, 2048, 2048}, {1, 2048, 4096}, {1, 2048, 512}, {1, 2048, 128},
          {1, 1024, 1024}, {1, 512, 512},   {1, 512, 2048}, {2, 128, 1024},
          {4, 256, 256},   {16, 64, 64},    {64, 16, 64}};
}

AttendMeasurement measure_attends(AttendMeasurement m, Communicator& comm, int threads,
                                  const KernelBudget& budget) {
  const std::vector<Shape> shapes = shapes_of(m.causal, budget.quick);
  int64_t rows = 0;
  for (const Shape& s : shapes)
    rows = std::max(rows, threads * s.tasks * std::max(s.queries, s.keys));
  AttendTimer timer(m, threads, rows);
  for (const Shape& shape : shapes) {
    const AttendCounts counts = timer.prepare(shape);
    const double seconds = kernel_seconds(comm, budget, threads, [&] { timer.run(); });
    m.times.push_back({counts, seconds});
    if (shape.queries != shape.keys || shape.tasks > 1) continue;
    m.rows.push_back({.rows = double(shape.keys),
                      .head_dim = double(m.head_dim),
                      .dtype = m.dtype,
                      .causal = m.causal,
                      .flops_per_s = 4.0 * double(m.head_dim) * counts.pairs / seconds});
  }
  return m;
}

// Rows of a branch with rate 2 are packed, and partials of as many rows merged.
void measure_moves(KernelMeasurement& result, Communicator& comm, int threads,
                   const KernelBudget& budget) {
  constexpr int64_t kDim = 64;
  const int64_t rows = budget.quick ? 4096 : 32768;
  const auto kernel = make_kernel("cpu");
  MemoryLedger ledger;
  TaggedBuffer a(ledger, "a", 2 * rows * (kDim + 1) * int64_t(sizeof(float)));
  TaggedBuffer b(ledger, "b", rows * (kDim + 1) * int64_t(sizeof(float)));
  std::fill_n(a.data(), a.size(), std::byte{0});
  std::fill_n(b.data(), b.size(), std::byte{0});
  auto* const from = reinterpret_cast<float*>(a.data());
  auto* const into = reinterpret_cast<float*>(b.data());
  const AttendOptions options{.head_dim = kDim};
  const PackTask pack{
      .from = from, .into = into, .from_stride = 2 * kDim, .into_stride = kDim, .rows = rows};
  const MergeTask merge{.from = {from, from + rows * kDim, kDim, 1},
                        .into = {into, into + rows * kDim, kDim, 1},
                        .rows = rows};
  const double packed = kernel_seconds(comm, budget, threads, [&] {
    kernel->pack({&pack, 1}, options, threads);
  });
  const double merged = kernel_seconds(comm, budget, threads, [&] {
    kernel->merge({&merge, 1}, MergeRule::kLse, options, threads);
  });
  result.select_bytes_per_s = double(rows * kDim) * sizeof(float) / packed;
  result.merge_bytes_per_s = double(rows * (kDim + 1)) * sizeof(float) / merged;
}

// A program of one attend of eight rows: its kernel takes less than what is around it.
double measure_launch(Communicator& comm, int threads, const KernelBudget& budget) {
  const AttentionProblem problem{.seq_len = 8 * comm.size(), .num_heads = 1, .num_kv_heads = 1};
  const ShardedProblem sharded{
      problem, dense_pattern(problem.seq_len), {problem.seq_len, comm.size()}};
  const auto kernel = make_kernel("cpu");
  MemoryLedger ledger;
  Schedule schedule = ring_attention(sharded);
  schedule.program = [ring = schedule.program](Rank rank) {
    RankProgram program = ring(rank);
    std::erase_if(program.ops, [](const Op& op) { return is_communication(op.what); });
    program.ops.resize(1);
    return program;
  };
  ProgramExecutor executor(schedule, *kernel, threads, comm, ledger);
  executor.fill_inputs();
  constexpr int kRepeats = 100;
  return kernel_seconds(comm, budget, threads,
                        [&] {
                          for (int i = 0; i < kRepeats; ++i) executor.run();
                        }) /
         kRepeats;
}

}  // namespace

KernelMeasurement measure_kernels(Communicator& comm, int threads, const KernelBudget& budget) {
  KernelMeasurement result;
  for (const int64_t head_dim : budget.head_dims)
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16})
      for (const bool causal : {false, true})
        result.attends.push_back(measure_attends(
            {.head_dim = head_dim, .dtype = dtype, .causal = causal}, comm, threads, budget));
  measure_moves(result, comm, threads, budget);
  result.launch_s = measure_launch(comm, threads, budget);
  return result;
}

double measure_one_attend(Communicator& comm, int threads, const KernelBudget& budget) {
  const int64_t rows = budget.quick ? 512 : 2048;
  AttendTimer timer({}, threads, rows * threads);
  timer.prepare({1, rows, rows});
  return kernel_seconds(comm, budget, threads, [&] { timer.run(); });
}

}  // namespace longnet
