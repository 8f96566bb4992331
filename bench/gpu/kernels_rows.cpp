#include <algorithm>
#include <cstdio>
#include <functional>

#include "core/stopwatch.h"
#include "gpu/kernels_gemm.h"
#include "kernels/cuda/rows.h"

namespace longnet::gpu {

size_t time_rows(int64_t tokens, std::vector<Json>& points) try {
  constexpr int64_t kHeads = 12, kDim = 64;
  const int64_t all = tokens * kHeads;
  MemoryLedger ledger;
  const DeviceBuffer inputs(ledger, "query", 2 * all * kDim);
  const DeviceBuffer outputs(ledger, "output", 4 * all * (kDim + 1));
  auto* const o = reinterpret_cast<float*>(outputs.data());
  std::vector<FillRows> in;
  std::vector<OutputRows> out;
  for (int64_t head = 0; head < kHeads; ++head) {
    in.push_back({.head = head,
                  .rows = tokens,
                  .out = inputs.data() + 2 * head * kDim,
                  .row_stride = kHeads * kDim});
    out.push_back({.o = o + head * kDim,
                   .lse = o + all * kDim + head,
                   .o_stride = kHeads * kDim,
                   .lse_stride = kHeads,
                   .head = head,
                   .rows = tokens});
  }
  const RowFormat format{.head_dim = kDim, .dtype = DType::kBFloat16};
  const auto worker = make_device_row_worker();
  const auto timed = [&](const char* name, int64_t bytes, const std::function<void()>& call) {
    call();
    double least = INFINITY;
    for (int i = 0; i < 5; ++i) {
      const double begin = steady_seconds();
      call();
      least = std::min(least, steady_seconds() - begin);
    }
    std::printf("%-11s %-14s %.2f GB: %9.1f GB/s\n", "rows", name, double(bytes) * 1e-9,
                double(bytes) / least * 1e-9);
    points.push_back(Json()
                         .set("section", "rows")
                         .set("kernel", name)
                         .set("bytes", bytes)
                         .set("bytes_per_s", double(bytes) / least));
  };
  uint64_t made = 0, read = 0;
  std::vector<OutputSummary> heads(out.size());
  timed("generate", inputs.size(), [&] { worker->fill(in, format, 1, &(made = 0)); });
  timed("digest", inputs.size(), [&] { read = worker->digest(in, format, 1); });
  timed("poison", outputs.size(), [&] { worker->poison(outputs.bytes(), 1); });
  const std::span<std::byte> poisoned[] = {outputs.bytes()};
  timed("both", inputs.size() + outputs.size(),
        [&] { worker->fill(in, format, 1, &(made = 0), poisoned); });
  worker->summarize(out, kDim, 1, heads);
  const bool right = made == read && heads.back().nan_values == tokens * (kDim + 1);
  const Stream stream;
  stream.fill(outputs.data(), 0, outputs.size());
  stream.synchronize();
  timed("summarize", outputs.size(), [&] { worker->summarize(out, kDim, 1, heads); });
  if (!right) std::printf("rows        wrong: digests %016lx %016lx\n", made, read);
  return right ? 0 : 1;
} catch (const std::exception& e) {
  std::printf("rows        %s\n", e.what());
  return 1;
}

}  // namespace longnet::gpu
