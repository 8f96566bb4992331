#include "run/attend_rate.h"

#include "core/tagged_memory.h"
#include "kernels/row_worker.h"
#include "measure/sampler.h"

namespace longnet {

double measure_attend_rate(const AttentionKernel& kernel, const AttendOptions& options,
                           int threads) {
  constexpr int64_t kRows = 2048, kSegmentsPerThread = 4;
  constexpr int kRepetitions = 3;
  const int64_t segments = kSegmentsPerThread * threads, d = options.head_dim;
  const int64_t rows = segments * kRows, row = d * dtype_bytes(options.dtype);
  MemoryLedger ledger;
  const TaggedBuffer q(ledger, "q", rows * row), k(ledger, "k", rows * row),
      v(ledger, "v", rows * row), o(ledger, "o", rows * (d + 1) * int64_t{sizeof(float)}),
      workspace(ledger, "workspace", kernel.workspace_bytes(options, threads));
  const auto worker = make_cpu_row_worker();
  const auto fill = [&](Tensor tensor, const TaggedBuffer& into) {
    const FillRows all{.tensor = tensor, .rows = rows, .out = into.data(), .row_stride = d};
    worker->fill({&all, 1}, {.head_dim = d, .dtype = options.dtype}, threads);
  };
  fill(Tensor::kQuery, q);
  fill(Tensor::kKey, k);
  fill(Tensor::kValue, v);
  std::vector<KvRun> runs;
  std::vector<AttendGrid> tasks;
  float* const out = reinterpret_cast<float*>(o.data());
  for (int64_t s = 0; s < segments; ++s)
    runs.push_back({.k = k.data() + s * kRows * row,
                    .v = v.data() + s * kRows * row,
                    .row_stride = d,
                    .rows = kRows});
  for (int64_t s = 0; s < segments; ++s)
    tasks.push_back({{.q = {.q = q.data() + s * kRows * row, .row_stride = d, .rows = kRows},
                      .kv = {&runs[size_t(s)], 1},
                      .out = {.o = out + s * kRows * d,
                              .lse = out + rows * d + s * kRows,
                              .o_stride = d,
                              .lse_stride = 1}}});
  kernel.attend(tasks, options, threads, workspace.bytes());  // warms up
  const double begin = steady_seconds();
  for (int i = 0; i < kRepetitions; ++i) kernel.attend(tasks, options, threads, workspace.bytes());
  const double flops = 4.0 * double(d) * double(rows) * double(kRows) * kRepetitions;
  return flops / (steady_seconds() - begin);
}

}  // namespace longnet
