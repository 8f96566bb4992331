// gpu_check: the generator, pack and merge.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "core/check.h"
#include "gpu/check.h"
#include "kernels/cuda/rows.h"
#include "kernels/reference/reference_kernel.h"

namespace longnet::gpu {

// ---- generator ----------------------------------------------------------------------------------

void check_generator(Outcome& out, bool) {
  for (const int64_t d : {8, 24, 64, 128, 256})
    for (const int64_t first : {int64_t{0}, int64_t{12345}, (int64_t{1} << 33) + 7})
      for (const StoredAs stored : {StoredAs::kBFloat16, StoredAs::kFloat16, StoredAs::kFloat32}) {
        MemoryLedger ledger;
        const int64_t rows = 67, stride = 3 * d, bytes = stored == StoredAs::kFloat32 ? 4 : 2;
        DeviceBuffer buffer(ledger, "rows", rows * stride * bytes);
        const FillRows task{.tensor = Tensor::kKey,
                            .head = 5,
                            .first_token = first,
                            .token_step = 9,
                            .rows = rows,
                            .out = buffer.data(),
                            .row_stride = stride};
        const Stream stream;
        stream.fill(buffer.data(), 0xFF, buffer.size());
        const DeviceFill fill({&task, 1}, 77, d, stored, ledger);
        fill.launch(stream);
        stream.synchronize();
        const auto got = download<std::byte>(buffer.data(), buffer.size());
        bool same = true;
        for (int64_t i = 0; i < rows; ++i) {
          const RowKey key{77, Tensor::kKey, first + 9 * i, 5};
          std::vector<float> x(static_cast<size_t>(d));
          std::vector<uint16_t> bits(static_cast<size_t>(d));
          generate_row(key, d, x.data());
          generate_row(key, d, bits.data());
          const std::byte* const row = got.data() + i * stride * bytes;
          if (stored == StoredAs::kFloat32)
            same = same && std::memcmp(row, x.data(), size_t(4 * d)) == 0;
          if (stored == StoredAs::kBFloat16)
            same = same && std::memcmp(row, bits.data(), size_t(2 * d)) == 0;
          for (int64_t c = 0; stored == StoredAs::kFloat16 && c < d; ++c) {
            uint16_t half = 0;
            std::memcpy(&half, row + 2 * c, 2);
            same = same && std::abs(half_value(half) - x[size_t(c)]) <=
                               std::ldexp(std::max(1.0f, std::abs(x[size_t(c)])), -11);
          }
        }
        out.expect(same, concat("generator d ", d, " first ", first, " stored ", int(stored)));
      }
}

// ---- pack and merge -----------------------------------------------------------------------------

void check_rows(Outcome& out, bool) {
  const Stream stream;
  for (const int64_t row_bytes : {4, 16, 48, 128, 132}) {
    MemoryLedger ledger;
    const int64_t rows = 150, in_stride = 2 * row_bytes + 16, out_stride = row_bytes + 4;
    std::vector<std::byte> host(size_t(rows * in_stride));
    for (size_t i = 0; i < host.size(); ++i) host[i] = std::byte(i * 7 + i / 251);
    DeviceBuffer from(ledger, "a", int64_t(host.size())), into(ledger, "b", rows * out_stride);
    from.upload(host);
    stream.fill(into.data(), 0xEE, into.size());
    const PackTask task{from.data(), into.data(), in_stride / 4, out_stride / 4, rows};
    const DevicePack pack({&task, 1}, row_bytes, 4, ledger);
    pack.launch(stream);
    stream.synchronize();
    const auto got = download<std::byte>(into.data(), into.size());
    bool same = true;
    for (int64_t i = 0; i < rows; ++i) {
      same = same && std::memcmp(&got[size_t(i * out_stride)], &host[size_t(i * in_stride)],
                                 size_t(row_bytes)) == 0;
      same = same && got[size_t(i * out_stride + row_bytes)] == std::byte{0xEE};
    }
    out.expect(same, concat("pack of rows of ", row_bytes, " bytes"));
  }
  const auto reference = make_reference_kernel();
  for (const int64_t d : {8, 24, 64, 128})
    for (const int64_t gap : {0, 1})  // 1: rows at odd addresses
      for (const MergeRule rule : {MergeRule::kLse, MergeRule::kSum}) {
        MemoryLedger ledger;
        const int64_t rows = 130, stride = d + gap;
        std::vector<float> host(size_t(2 * rows * (stride + 1)));
        for (size_t i = 0; i < host.size(); ++i)
          host[i] = unit_normal_like(philox4x32_10({{uint32_t(i), 1, 2, 3}}, 4, 5).word[0]);
        const auto parts = [&](float* base) {
          return std::pair<PartialRun, PartialRun>{
              {base, base + rows * stride, stride, 1},
              {base + rows * (stride + 1), base + rows * (2 * stride + 1), stride, 1}};
        };
        const auto [a, b] = parts(host.data());
        for (int64_t i = 0; i < rows; i += 5) a.lse[i] = -INFINITY;
        for (int64_t i = 0; i < rows; i += 7) b.lse[i] = -INFINITY;
        DeviceBuffer device(ledger, "rows", int64_t(host.size() * sizeof(float)));
        const auto [da, db] = parts(device.upload(host));
        const MergeTask wanted{a, b, rows}, task{da, db, rows};
        reference->merge({&wanted, 1}, rule, {.head_dim = d}, 1);
        const DeviceMerge merge({&task, 1}, rule, d, ledger);
        merge.launch(stream);
        stream.synchronize();
        const auto got = download<float>(device.data(), int64_t(host.size()));
        float worst = 0;
        for (size_t i = 0; i < host.size(); ++i)
          if (got[i] != host[i]) worst = std::max(worst, std::abs(got[i] - host[i]));
        out.expect(worst <= 4e-6f,
                   concat("merge d ", d, " gap ", gap, " rule ", int(rule), ": off by ", worst));
      }
}

}  // namespace longnet::gpu
