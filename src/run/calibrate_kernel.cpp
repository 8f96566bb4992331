// Times the host's kernels for a cluster file (calibrate.h): attends of both passes, packs, merges,
// sums and deltas.
#include <algorithm>

#include "core/stopwatch.h"
#include "execute/program_executor.h"
#include "kernels/attention_kernel.h"
#include "kernels/row_worker.h"
#include "run/calibrate.h"
#include "schedule/registry.h"

namespace longnet {
namespace {

// A program reads each row once or a few times: runs take turns on as much data, more than caches
// hold; warm in them, attends seem up to a tenth faster than they are in programs.
constexpr int64_t kColdBytes = int64_t{48} << 20;
constexpr int64_t kHeads = 4;  // rows of one head lie this many heads apart

// One thread is timed by its own CPU time, so that other processes affect the kernel only through
// the caches. Several threads are timed by wall-clock time.
template <class Run>
double kernel_seconds(Communicator& comm, const CalibrationBudget& budget, int threads,
                      const Run& run) {
  return quartile_seconds(comm, budget.kernel, run,
                          threads == 1 ? thread_cpu_seconds : steady_seconds);
}

// `tasks` independent blocks of queries, each against keys of its own.
struct Shape {
  int64_t tasks = 1, queries = 0, keys = 0;
};

// Rows of Q, K and V, as many as caches do not hold.
class TimedRows {
 protected:
  TimedRows(const AttendMeasurement& m, int threads, int64_t most_rows)
      : kernel_(make_kernel("cpu")),
        options_{.head_dim = m.head_dim, .dtype = m.dtype, .causal = m.causal},
        threads_(threads),
        size_(dtype_bytes(m.dtype)),
        row_(kHeads * m.head_dim),
        rows_(std::max(most_rows, kColdBytes / (3 * row_ * size_))),
        q_(ledger_, "q", rows_ * row_ * size_),
        kv_(ledger_, "kv", 2 * rows_ * row_ * size_),
        workspace_(ledger_, kWorkspaceTag,
                   kernel_->workspace_bytes(options_, threads,
                                            m.backward ? Pass::kBackward : Pass::kForward)) {
    fill(Tensor::kQuery, q_.data());
    fill(Tensor::kKey, kv_.data());
    fill(Tensor::kValue, kv_.data() + rows_ * row_ * size_);
  }
  void fill(Tensor tensor, std::byte* rows) const {
    std::vector<FillRows> fills;
    for (int64_t head = 0; head < kHeads; ++head)
      fills.push_back({.tensor = tensor,
                       .head = head,
                       .rows = rows_,
                       .out = rows + head * options_.head_dim * size_,
                       .row_stride = row_});
    make_cpu_row_worker()->fill(fills, {.head_dim = options_.head_dim, .dtype = options_.dtype},
                                threads_);
  }
  // Elements from the beginning of a tensor to a row of a head.
  int64_t at(int64_t head, int64_t row) const { return row * row_ + head * options_.head_dim; }
  KvRun keys_at(int64_t head, int64_t row, int64_t keys) const {
    const std::byte* const k = kv_.data() + at(head, row) * size_;
    return {.k = k, .v = k + rows_ * row_ * size_, .row_stride = row_, .rows = keys};
  }
  // Queries stand at the end of their keys.
  QueryRun queries_at(int64_t head, int64_t row, int64_t queries, int64_t keys) const {
    return {.q = q_.data() + at(head, row) * size_,
            .row_stride = row_,
            .rows = queries,
            .first_token = keys - queries};
  }
  static double pairs_of(double queries, double keys, bool causal) {
    return queries * keys - (causal ? queries * (queries - 1) / 2 : 0);
  }

  MemoryLedger ledger_;
  std::unique_ptr<AttentionKernel> kernel_;
  AttendOptions options_;
  int threads_;
  int64_t size_, row_, rows_;  // bytes of an element; elements from row to row of a head; rows
  int64_t copies_ = 0, runs_ = 0;
  TaggedBuffer q_, kv_, workspace_;
};

class AttendTimer : TimedRows {
 public:
  AttendTimer(const AttendMeasurement& m, int threads, int64_t most_rows)
      : TimedRows(m, threads, most_rows),
        out_(ledger_, "out", rows_ * (row_ + kHeads) * int64_t(sizeof(float))) {
    std::fill_n(out_.data(), out_.size(), std::byte{0});  // the pages are there when time runs
  }

  // The counts of all threads' tasks together; a rank's seconds are theirs over its threads.
  AttendCounts prepare(const Shape& shape) {
    tasks_.clear();
    keys_.clear();
    per_copy_ = shape.tasks * threads_;
    const int64_t rows_per_copy = per_copy_ * std::max(shape.queries, shape.keys);
    const int64_t copies_per_head = rows_ / rows_per_copy;
    copies_ = copies_per_head * kHeads;
    keys_.reserve(size_t(copies_ * per_copy_));
    AttendCounts counts;
    for (int64_t i = 0; i < copies_ * per_copy_; ++i) {
      // Queries stand at the end of their keys: causal, block after block of a sequence.
      const int64_t copy = i / per_copy_, task = i % per_copy_;
      const int64_t head = copy / copies_per_head, first = copy % copies_per_head * rows_per_copy;
      const int64_t keys = options_.causal ? (task / threads_ + 1) * shape.keys : shape.keys;
      add_task(head, first + task * shape.queries, shape.queries,
               first + (options_.causal ? 0 : task * shape.keys), keys);
      if (copy > 0) continue;
      counts.blocks += 1, counts.queries += double(shape.queries), counts.key_rows += double(keys);
      counts.pairs += pairs_of(double(shape.queries), double(keys), options_.causal);
    }
    for (size_t i = 0; i < tasks_.size(); ++i) tasks_[i].task.kv = {&keys_[i], 1};
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
  void add_task(int64_t head, int64_t q, int64_t queries, int64_t k, int64_t keys) {
    auto* const o = reinterpret_cast<float*>(out_.data());
    keys_.push_back(keys_at(head, k, keys));
    tasks_.push_back({{.q = queries_at(head, q, queries, keys),
                       .kv = {},
                       .out = {.o = o + at(head, q),
                               .lse = o + rows_ * row_ + q * kHeads + head,
                               .o_stride = row_,
                               .lse_stride = kHeads}}});
  }

  int64_t per_copy_ = 0;
  TaggedBuffer out_;
  std::vector<KvRun> keys_;
  std::vector<AttendGrid> tasks_;
};

// Backward passes: a run is one grid, whose tasks have keys of their own.
class BackwardTimer : TimedRows {
 public:
  BackwardTimer(const AttendMeasurement& m, int threads, int64_t most_rows)
      : TimedRows(m, threads, most_rows),
        grad_out_(ledger_, "grad_out", q_.size()),
        statistics_(ledger_, "statistics", rows_ * kHeads * 2 * int64_t(sizeof(float))),
        grad_q_(ledger_, "grad_q", rows_ * row_ * int64_t(sizeof(float))),
        grad_kv_(ledger_, "grad_kv", 2 * rows_ * row_ * int64_t(sizeof(float))) {
    fill(Tensor::kGradOut, grad_out_.data());
    constexpr float kLse = 8;  // P is small, whatever the keys
    for (int64_t i = 0; i < rows_ * kHeads; ++i)
      floats(statistics_)[2 * i] = kLse, floats(statistics_)[2 * i + 1] = 0;
    for (TaggedBuffer* sums : {&grad_q_, &grad_kv_})
      std::fill_n(sums->data(), sums->size(), std::byte{0});
  }

  AttendCounts prepare(const Shape& shape) {
    const int64_t tasks = shape.tasks * threads_;
    const int64_t rows_per_copy = tasks * std::max(shape.queries, shape.keys);
    const int64_t copies_per_head = rows_ / rows_per_copy;
    copies_ = copies_per_head * kHeads;
    keys_.resize(size_t(copies_));
    grids_.resize(size_t(copies_));
    for (int64_t copy = 0; copy < copies_; ++copy)
      set_grid(size_t(copy), copy / copies_per_head, copy % copies_per_head * rows_per_copy, shape);
    const double q = double(shape.queries), k = double(shape.keys), all = double(tasks);
    AttendCounts counts{.queries = all * q,
                        .pairs = all * pairs_of(q, k, options_.causal),
                        .masked = options_.causal,
                        .most_keys = k};
    cut_into_blocks(counts, all, double(kBackwardBlockRows));
    for (double* count : {&counts.blocks, &counts.queries, &counts.key_rows, &counts.pairs})
      *count /= threads_;
    return counts;
  }
  void run() {
    kernel_->attend_backward({&grids_[size_t(runs_++ % copies_)], 1}, options_, threads_,
                             workspace_.bytes());
  }

 private:
  static float* floats(TaggedBuffer& rows) { return reinterpret_cast<float*>(rows.data()); }
  void set_grid(size_t i, int64_t head, int64_t row, const Shape& shape) {
    keys_[i] = keys_at(head, row, shape.keys);
    keys_[i].step_bytes[0] = shape.keys * row_ * size_;
    grids_[i] = {.attend = {.task = {.q = queries_at(head, row, shape.queries, shape.keys),
                                     .kv = {&keys_[i], 1},
                                     .out = {}},
                            .count = {shape.tasks * threads_, 1, 1, 1},
                            .q_step_bytes = {shape.queries * row_ * size_}},
                 .grad_out = grad_out_.data() + at(head, row) * size_,
                 .grad_q = floats(grad_q_) + at(head, row),
                 .statistics = floats(statistics_) + 2 * (row * kHeads + head),
                 .statistics_stride = 2 * kHeads,
                 .statistics_step = {shape.queries * 2 * kHeads},
                 .keys = kv_.data(),
                 .grad_keys = floats(grad_kv_)};
  }

  TaggedBuffer grad_out_, statistics_, grad_q_, grad_kv_;
  std::vector<KvRun> keys_;
  std::vector<BackwardGrid> grids_;
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

template <class Timer>
AttendMeasurement measure_attends(AttendMeasurement m, Communicator& comm, int threads,
                                  const CalibrationBudget& budget) {
  const std::vector<Shape> shapes = shapes_of(m.causal, budget.quick);
  int64_t rows = 0;
  for (const Shape& s : shapes)
    rows = std::max(rows, threads * s.tasks * std::max(s.queries, s.keys));
  Timer timer(m, threads, rows);
  for (const Shape& shape : shapes) {
    const AttendCounts counts = timer.prepare(shape);
    const double seconds = kernel_seconds(comm, budget, threads, [&] { timer.run(); });
    m.times.push_back({counts, seconds});
    if (shape.queries != shape.keys || shape.tasks > 1) continue;
    m.rows.push_back(
        {.rows = double(shape.keys),
         .head_dim = double(m.head_dim),
         .dtype = m.dtype,
         .causal = m.causal,
         .backward = m.backward,
         .flops_per_s =
             pair_flops((m.backward ? kBackwardFlops : 1) * counts.pairs, m.head_dim) / seconds});
  }
  return m;
}

// Rows of a branch with rate 2 are packed, and as many merged, added and read by a delta; kHeads
// apart, as in programs.
void measure_moves(KernelMeasurement& result, Communicator& comm, int threads,
                   const CalibrationBudget& budget) {
  constexpr int64_t kDim = 64, kRow = kHeads * kDim;
  const int64_t rows = budget.quick ? 1024 : 8192;
  const auto kernel = make_kernel("cpu");
  MemoryLedger ledger;
  TaggedBuffer a(ledger, "a", 2 * rows * (kRow + kHeads) * int64_t(sizeof(float)));
  TaggedBuffer b(ledger, "b", rows * (kRow + kHeads) * int64_t(sizeof(float)));
  std::fill_n(a.data(), a.size(), std::byte{0});
  std::fill_n(b.data(), b.size(), std::byte{0});
  auto* const from = reinterpret_cast<float*>(a.data());
  auto* const into = reinterpret_cast<float*>(b.data());
  const AttendOptions options{.head_dim = kDim};
  std::vector<PackTask> packs;
  std::vector<SumTask> sums;
  std::vector<MergeTask> merges;
  std::vector<DeltaTask> deltas;
  for (int64_t head = 0; head < kHeads; ++head) {
    packs.push_back({.from = from + head * kDim,
                     .into = into + head * rows * kDim,
                     .from_stride = 2 * kRow,
                     .into_stride = kDim,
                     .rows = rows});
    const auto partial = [&](float* base) {
      return PartialRun{base + head * kDim, base + rows * kRow + head, kRow, kHeads};
    };
    merges.push_back({.from = partial(from), .into = partial(into), .rows = rows});
    sums.push_back({{.from = from + head * kDim,
                     .into = into + head * kDim,
                     .from_stride = kRow,
                     .into_stride = kRow,
                     .rows = rows}});
    deltas.push_back({.out = partial(from),
                      .grad_out = into + head * kDim,
                      .statistics = from + rows * (kRow + kHeads) + 2 * head,
                      .grad_out_stride = kRow,
                      .statistics_stride = 2 * kHeads,
                      .rows = rows});
  }
  const auto bytes_per_s = [&](int64_t floats_a_row, const auto& run) {
    const double seconds = kernel_seconds(comm, budget, threads, run);
    return double(rows * floats_a_row) * sizeof(float) / seconds;
  };
  result.pack_bytes_per_s =
      bytes_per_s(kRow, [&] { kernel->pack(packs, Conversion::kNone, options, threads); });
  result.merge_bytes_per_s =
      bytes_per_s(kRow + kHeads, [&] { kernel->merge(merges, MergeRule::kLse, options, threads); });
  result.sum_bytes_per_s = bytes_per_s(kRow, [&] { kernel->add(sums, options, threads); });
  result.delta_bytes_per_s =
      bytes_per_s(2 * kRow + kHeads, [&] { kernel->delta(deltas, options, threads); });
}

// A program of one attend of eight rows: its kernel takes less than what is around it.
double measure_launch(Communicator& comm, int threads, const CalibrationBudget& budget) {
  const AttentionProblem problem{
      .seq_len = 8 * int64_t{comm.size()}, .num_heads = 1, .num_kv_heads = 1};
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

KernelMeasurement measure_kernels(Communicator& comm, int threads,
                                  const CalibrationBudget& budget) {
  KernelMeasurement result;
  for (const int64_t head_dim : budget.head_dims)
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16})
      for (const bool causal : {false, true}) {
        AttendMeasurement m{.head_dim = head_dim, .dtype = dtype, .causal = causal};
        result.attends.push_back(measure_attends<AttendTimer>(m, comm, threads, budget));
        m.backward = true;
        result.attends.push_back(measure_attends<BackwardTimer>(m, comm, threads, budget));
      }
  measure_moves(result, comm, threads, budget);
  result.launch_s = measure_launch(comm, threads, budget);
  return result;
}

double measure_one_attend(Communicator& comm, int threads, const CalibrationBudget& budget) {
  const int64_t rows = budget.quick ? 512 : 2048;
  AttendTimer timer({}, threads, rows * threads);
  timer.prepare({1, rows, rows});
  return kernel_seconds(comm, budget, threads, [&] { timer.run(); });
}

}  // namespace longnet
