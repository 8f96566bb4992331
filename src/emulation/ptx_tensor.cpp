#include <algorithm>
#include <array>
#include <cstdlib>
#include <span>

#include "core/check.h"
#include "emulation/ptx_block.h"

namespace longnet::ptx {
namespace {

// PTX ISA, matrix descriptors of wgmma.
struct Tile {
  uint64_t start, leading, stride;
  explicit Tile(uint64_t d)
      : start((d & 0x3FFF) << 4),
        leading((d >> 16 & 0x3FFF) << 4),
        stride((d >> 32 & 0x3FFF) << 4) {
    check(d >> 62 == 1 && (d >> 49 & 7) == 0, "not a 128-byte swizzle with base offset 0");
  }
};

// A row of bf16 that lies in one piece before the swizzle, 16 bytes at a time.
void read_row(SharedMemory& shared, uint64_t at, std::span<float> row, int warp) {
  check(at % 16 == 0, "a row of a matrix at ", at);
  for (size_t i = 0; i < row.size(); i += 8) {
    std::array<uint16_t, 8> piece{};
    std::memcpy(piece.data(), shared.read(swizzled(at + i * 2), 16, warp), 16);
    for (size_t k = 0; k < std::min<size_t>(8, row.size() - i); ++k)
      row[i + k] = bf16_value(piece[k]);
  }
}

// PTX ISA, mma.m16n8k16 and wgmma: A is 16 x 16, a lane has 4 words of two columns each.
using MatrixA = std::array<float, size_t(16) * 16>;
MatrixA fragments_of_a(Warp& w, const PtxOperand& operand) {
  MatrixA a{};
  for (int l = 0; l < kLanes; ++l)
    for (int i = 0; i < 4; ++i)
      for (int half = 0; half < 2; ++half) {
        const int row = l / 4 + (i & 1) * 8, col = l % 4 * 2 + half + (i >> 1) * 8;
        a[size_t(row * 16 + col)] =
            bf16_value(uint16_t(w.words(operand.parts.at(size_t(i)).row)[l] >> (16 * half)));
      }
  return a;
}

constexpr size_t kMostOfB = size_t(16) * 256;

// D = C + A B of 16 x n, B as [k][column]: a lane has parts.size() numbers of C, and of D. Sums
// start at zero if not `add`.
void accumulate(Warp& w, const MatrixA& a, std::span<const float> b, const PtxInstruction& in,
                const PtxOperand& c, bool add) {
  const size_t parts = c.parts.size(), n = parts * 2;
  std::array<float, kMostOfB> sums;  // [row][column]
  const auto sum_of = [&](size_t part, size_t l) -> float& {
    return sums[(l / 4 + part % 4 / 2 * 8) * n + part / 4 * 8 + l % 4 * 2 + part % 2];
  };
  for (size_t part = 0; part < parts; ++part)
    for (size_t l = 0; l < kLanes; ++l)
      sum_of(part, l) = add ? w.real(c.parts[part].row, int(l)) : 0.0f;
  for (size_t row = 0; row < 16; ++row)
    for (size_t k = 0; k < 16; ++k)
      for (size_t col = 0; col < n; ++col) sums[row * n + col] += a[row * 16 + k] * b[k * n + col];
  for (size_t part = 0; part < parts; ++part)
    for (size_t l = 0; l < kLanes; ++l)
      w.words(in.operands[0].parts.at(part).row)[l] = bits<uint32_t>(sum_of(part, l));
}

// Operands of a wgmma instruction other than registers, with their values at issue.
struct GroupProduct {
  bool from_registers = false;             // A is in registers
  uint64_t a = 0, b = 0;                   // matrix descriptors
  bool add = false, b_along_rows = false;  // b_along_rows: B's columns are rows of memory
};

// PTX ISA, wgmma.m64nNk16: warp i of a warpgroup has rows 16 i to 16 i + 15.
void group_multiply(Warp& w, const PtxInstruction& in, const GroupProduct& p,
                    SharedMemory& shared) {
  const int n = std::atoi(in.words[4].c_str() + 4);
  const auto& o = in.operands;
  const Tile b(p.b);
  MatrixA a{};
  if (p.from_registers) {
    a = fragments_of_a(w, o[1]);
  } else {
    const Tile t(p.a);
    for (uint64_t row = 0; row < 16; ++row) {
      const uint64_t r = uint64_t(w.index % 4) * 16 + row;
      read_row(shared, t.start + r / 8 * t.stride + r % 8 * 128, std::span(a).subspan(row * 16, 16),
               w.index);
    }
  }
  check(n >= 8 && n <= 256, "a product of ", n, " columns");
  std::array<float, kMostOfB> right;
  if (p.b_along_rows) {  // 64 columns, and the next ones `leading` on
    for (uint64_t k = 0; k < 16; ++k)
      for (uint64_t col = 0; col < uint64_t(n); col += 64)
        read_row(shared, b.start + k / 8 * b.stride + k % 8 * 128 + col / 64 * b.leading,
                 std::span(right).subspan(k * uint64_t(n) + col, 64), w.index);
  } else {
    std::array<float, 16> column{};
    for (size_t col = 0; col < size_t(n); ++col) {
      read_row(shared, b.start + col / 8 * b.stride + col % 8 * 128, column, w.index);
      for (size_t k = 0; k < 16; ++k) right[k * size_t(n) + col] = column[k];
    }
  }
  check(o[0].parts.size() == size_t(n) / 2, "accumulators of another number");
  accumulate(w, a, right, in, o[0], p.add);
}

}  // namespace

// PTX ISA, mma.m16n8k16: rows of A and C are groups of four lanes.
void multiply(Warp& w, const PtxInstruction& in) {
  const MatrixA a = fragments_of_a(w, in.operands[1]);
  std::array<float, size_t(16) * 8> b{};
  for (int l = 0; l < kLanes; ++l)
    for (int half = 0; half < 2; ++half)
      for (int i = 0; i < 2; ++i)
        b[size_t((l % 4 * 2 + half + i * 8) * 8 + l / 4)] =
            bf16_value(uint16_t(w.words(in.operands[2].parts.at(size_t(i)).row)[l] >> (16 * half)));
  accumulate(w, a, b, in, in.operands.at(3), true);
}

// PTX ISA, ldmatrix: lane 8 i + r says where row r of matrix i lies.
void load_matrices(Warp& w, const PtxInstruction& in, SharedMemory& shared) {
  const bool transposed = in.has("trans");
  const PtxOperand& address = in.operands[1];
  std::array<std::array<uint16_t, 8>, kLanes> rows{};
  for (int l = 0; l < kLanes; ++l) {
    const uint64_t at = w.value(address.row, l) + uint64_t(address.offset);
    check(at % 16 == 0, "a row of a matrix at ", at);
    std::memcpy(rows[size_t(l)].data(), shared.read(at, 16, w.index), 16);
  }
  for (int l = 0; l < kLanes; ++l)
    for (int i = 0; i < 4; ++i) {
      const auto element = [&](int e) -> uint32_t {
        return transposed ? rows[size_t(8 * i + l % 4 * 2 + e)][size_t(l / 4)]
                          : rows[size_t(8 * i + l / 4)][size_t(l % 4 * 2 + e)];
      };
      w.words(in.operands[0].parts.at(size_t(i)).row)[l] = element(0) | element(1) << 16;
    }
}

std::function<void()> group_product(Warp& w, const PtxInstruction& in, SharedMemory& shared) {
  check(in.op.ends_with(".f32.bf16.bf16"), "a product of other types than bf16");
  const auto& o = in.operands;
  const auto uniform = [&](size_t i) {
    const uint64_t value = w.value(o.at(i).row, 0);
    for (int l = 1; l < kLanes; ++l)
      check(w.value(o[i].row, l) == value, "operand ", i, " of wgmma differs between lanes");
    return value;
  };
  const bool from_registers = !o[1].parts.empty();
  GroupProduct p{.from_registers = from_registers, .b = uniform(2), .add = uniform(3) != 0};
  if (!from_registers) p.a = uniform(1);
  check(uniform(4) == 1 && uniform(5) == 1, "a negated operand");
  p.b_along_rows = uniform(from_registers ? 6 : 7) == 1;
  check(from_registers || uniform(6) == 0, "a transposed A");
  // Registers that other instructions have written are not seen before a fence.
  for (const size_t i : {size_t{0}, size_t{1}})
    for (const PtxOperand& part : o[i].parts)
      check(w.written_at(part.row) <= w.fenced,
            "wgmma without wgmma.fence behind the instruction "
            "that wrote its ",
            i == 0 ? "accumulators" : "A");
  return [&w, &in, &shared, p] { group_multiply(w, in, p, shared); };
}

}  // namespace longnet::ptx
