// gpu_check: the generator, pack and merge.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "core/check.h"
#include "gpu/check.h"
#include "kernels/attention_kernel.h"
#include "kernels/cuda/rows.h"

namespace longnet::gpu {

// ---- generator ----------------------------------------------------------------------------------

void check_generator(Outcome& out, bool) {
  for (const int64_t d : {8, 24, 64, 128, 256})
    for (const int64_t first : {int64_t{0}, int64_t{12345}, (int64_t{1} << 33) + 7})
      for (const DType stored : {DType::kBFloat16, DType::kFloat32}) {
        MemoryLedger ledger;
        const int64_t rows = 67, stride = 3 * d, bytes = dtype_bytes(stored);
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
        const Prepared fill = prepare_fill({&task, 1}, 77, d, stored, ledger);
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
          const void* const made =
              stored == DType::kFloat32 ? static_cast<const void*>(x.data()) : bits.data();
          same = same && std::memcmp(row, made, size_t(bytes * d)) == 0;
        }
        out.expect(same, concat("generator d ", d, " first ", first, " ", to_string(stored)));
      }
}

// ---- pack, convert, widen and merge -------------------------------------------------------------

namespace {

std::vector<float> numbers(size_t count, uint32_t seed) {
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i)
    values[i] = unit_normal_like(philox4x32_10({{uint32_t(i), 1, 2, 3}}, seed, 5).word[0]);
  return values;
}

// Rows between fp32 and bf16: the host's bits, and nothing between the rows.
void check_convert(Outcome& out) {
  const int64_t rows = 70, d = 24, from_stride = 40, into_stride = 29;
  MemoryLedger ledger;
  const Stream stream;
  const std::vector<float> wide = numbers(size_t(rows * from_stride), 2);
  std::vector<uint16_t> narrow;
  for (const float x : wide) narrow.push_back(bf16_bits(x));
  DeviceBuffer wide_buffer(ledger, "a", int64_t(wide.size()) * 4),
      narrow_buffer(ledger, "b", int64_t(narrow.size()) * 2),
      into(ledger, "c", rows * into_stride * 4);
  wide_buffer.upload(wide);
  narrow_buffer.upload(narrow);
  for (const Conversion how : {Conversion::kRound, Conversion::kWiden}) {
    const bool rounds = how == Conversion::kRound;
    stream.fill(into.data(), 0xEE, into.size());
    const PackTask task{rounds ? wide_buffer.data() : narrow_buffer.data(), into.data(),
                        from_stride, into_stride, rows};
    const Prepared convert = prepare_pack({&task, 1}, how, d, 2, ledger);
    convert.launch(stream);
    stream.synchronize();
    const auto rounded = download<uint16_t>(into.data(), rows * into_stride);
    const auto widened = download<float>(into.data(), rows * into_stride);
    bool same = true;
    for (int64_t i = 0; i < rows * into_stride; ++i) {
      const int64_t row = i / into_stride, c = i % into_stride, from = row * from_stride + c;
      const auto at = size_t(i);
      if (rounds)
        same = same && rounded[at] == (c < d ? narrow[size_t(from)] : 0xEEEE);
      else if (c < d)
        same = same && widened[at] == bf16_value(narrow[size_t(from)]);
      else
        same = same && std::memcmp(&widened[at], "\xEE\xEE\xEE\xEE", 4) == 0;
    }
    out.expect(same, rounds ? "rounding rows" : "widening rows");
  }
}

// Rows as cuDNN leaves them: those that saw no key become the identity of merge.
void check_widen(Outcome& out) {
  const int64_t rows = 70, d = 24;
  MemoryLedger ledger;
  const Stream stream;
  std::vector<uint16_t> from;
  for (int64_t i = 0; i < rows * d; ++i) from.push_back(uint16_t(0x3C00 + i * 37 % 1024));
  std::vector<float> lse = numbers(size_t(rows), 8);
  lse[3] = NAN;
  lse[4] = -3e38f;
  DeviceBuffer from_buffer(ledger, "a", int64_t(from.size()) * 2),
      o(ledger, "b", rows * (d + 1) * 4), lse_buffer(ledger, "c", rows * 4);
  stream.fill(o.data(), 0xEE, o.size());
  const WidenTask task{from_buffer.upload(from),
                       {reinterpret_cast<float*>(o.data()), lse_buffer.upload(lse), d + 1, 1},
                       rows};
  const Prepared widen = prepare_widen({&task, 1}, d, 0.5f, ledger);
  widen.launch(stream);
  stream.synchronize();
  const auto got = download<float>(o.data(), rows * (d + 1));
  const auto got_lse = download<float>(lse_buffer.data(), rows);
  bool same = true;
  for (int64_t i = 0; i < rows; ++i) {
    const bool blind = i == 3 || i == 4;
    same = same && got_lse[size_t(i)] == (blind ? -INFINITY : lse[size_t(i)]);
    for (int64_t c = 0; c < d; ++c) {
      const uint16_t bits = from[size_t(i * d + c)];
      same = same && got[size_t(i * (d + 1) + c)] == (blind ? 0.0f : bf16_value(bits) * 0.5f);
    }
    same = same && std::memcmp(&got[size_t(i * (d + 1) + d)], "\xEE\xEE\xEE\xEE", 4) == 0;
  }
  out.expect(same, "widening rows that cuDNN wrote");
}

void check_sums(Outcome& out) {
  const Stream stream;
  for (const int64_t d : {8, 66})
    for (const int64_t gap : {0, 1}) {  // rows at addresses of 16 bytes, or not
      MemoryLedger ledger;
      const int64_t rows = 70, stride = d + gap, pieces = 3, piece = rows * stride;
      std::vector<float> from = numbers(size_t(pieces * piece), 1),
                         into = numbers(size_t(rows * stride), 2);
      DeviceBuffer a(ledger, "a", 4 * pieces * piece), b(ledger, "b", 4 * rows * stride);
      const SumTask task{{a.upload(from), b.upload(into), stride, stride, rows}, pieces, piece};
      const Prepared add = prepare_add({&task, 1}, d, ledger);
      add.launch(stream);
      stream.synchronize();
      for (int64_t at = 0; at < pieces * piece; ++at)
        if (at % stride < d) into[size_t(at % piece)] += from[size_t(at)];
      out.expect(download<float>(b.data(), rows * stride) == into,
                 concat("sums of rows of ", d, " gap ", gap));
    }
}

// Rows of O in bf16, one value of them NaN, against the reference's merge of what they stand for.
void check_short_merge(Outcome& out) {
  constexpr int64_t kRows = 70, kDim = 24, kRowFloats = kDim / 2;
  for (const MergeRule rule : {MergeRule::kLse, MergeRule::kSum}) {
    MemoryLedger ledger;
    const Stream stream;
    std::vector<float> wide = numbers(size_t(2 * kRows * kDim), 4), lse(2 * kRows, 0.5f);
    std::vector<uint16_t> o;
    lse[3] = lse[kRows + 5] = -INFINITY;
    for (float& x : wide) x = bf16_value(o.emplace_back(bf16_bits(x)));
    o[7 * kDim + 1] = 0x7FC0, wide[7 * kDim + 1] = NAN;
    DeviceBuffer o_buffer(ledger, "o", int64_t(o.size() * 2)), lse_buffer(ledger, "lse", 8 * kRows);
    auto* const at = reinterpret_cast<float*>(o_buffer.upload(o));
    auto* const lse_at = lse_buffer.upload(lse);
    const auto task_of = [&](float* rows, float* lses, int64_t row) {
      return MergeTask{{rows, lses, row, 1}, {rows + kRows * row, lses + kRows, row, 1}, kRows};
    };
    const MergeTask wanted = task_of(wide.data(), lse.data(), kDim);
    const MergeTask task = task_of(at, lse_at, kRowFloats);
    make_reference_kernel()->merge({&wanted, 1}, rule, {.head_dim = kDim}, 1);
    const Prepared merge = prepare_merge({&task, 1}, rule, kDim, ledger, DType::kBFloat16);
    merge.launch(stream);
    stream.synchronize();
    const auto got = download<uint16_t>(at, int64_t(o.size()));
    int64_t wrong = 0;
    for (size_t i = 0; i < o.size(); ++i) {
      const float x = bf16_value(got[i]);
      wrong += std::isnan(wide[i]) ? !std::isnan(x)
                                   : !(std::abs(x - wide[i]) <= std::abs(wide[i]) / 255 + 1e-6f);
    }
    out.expect(wrong == 0, concat("merge in bf16, rule ", int(rule), ": ", wrong, " wrong values"));
  }
}

void check_flat_ranges(Outcome& out) {
  MemoryLedger ledger;
  const Stream stream;
  for (const int64_t count : {1, 255, 1000}) {
    std::vector<float> values(size_t(count + 1), 1.0f);
    DeviceBuffer buffer(ledger, "a", int64_t(values.size()) * 4), total(ledger, "b", 8);
    auto* const at = buffer.upload(values);
    fill_floats(at, count, 2.0f, stream);
    stream.synchronize();
    values = download<float>(at, count + 1);
    out.expect(std::count(values.begin(), values.end(), 2.0f) == count && values.back() == 1.0f,
               concat("filling ", count, " floats"));
    values[0] = values[size_t(count) / 2] = values.back() = NAN;
    buffer.upload(values);
    auto* const nans = total.upload(std::vector<unsigned long long>{10});
    count_nan(at, count, nans, stream);
    stream.synchronize();
    out.expect(download<unsigned long long>(nans, 1)[0] == (count > 1 ? 12u : 11u),
               concat("counting NaNs among ", count));
    values.assign(values.size(), std::bit_cast<float>(0x3F803F80));     // pairs of 1 in bf16
    values[0] = std::bit_cast<float>(0x7FC0FFFF), values.back() = NAN;  // two NaNs; one behind
    buffer.upload(values);
    count_nan(at, count, nans, stream, DType::kBFloat16);
    stream.synchronize();
    out.expect(download<unsigned long long>(nans, 1)[0] == (count > 1 ? 14u : 13u),
               concat("counting NaNs among ", count, " pairs"));
  }
}

}  // namespace

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
    const Prepared pack = prepare_pack({&task, 1}, Conversion::kNone, row_bytes / 4, 4, ledger);
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
  check_convert(out);
  check_widen(out);
  check_sums(out);
  check_flat_ranges(out);
  check_short_merge(out);
  const auto reference = make_reference_kernel();
  for (const int64_t d : {8, 24, 64, 128})
    for (const int64_t gap : {0, 1})  // 1: rows at odd addresses
      for (const MergeRule rule : {MergeRule::kLse, MergeRule::kSum}) {
        MemoryLedger ledger;
        const int64_t rows = 132, stride = d + gap;  // with gap 0, multiples of 16 bytes
        std::vector<float> host = numbers(size_t(2 * rows * (stride + 1)), 4);
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
        const Prepared merge = prepare_merge({&task, 1}, rule, d, ledger);
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
