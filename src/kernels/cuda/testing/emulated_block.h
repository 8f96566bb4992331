// For tests: plays the block and the warps of the tile loop on the CPU, lane by lane.
//
// mma, ldmatrix and shuffles do what the PTX manual says they do; nothing is taken from the index
// functions under test. Shared memory starts as NaN. Copies land either as early or as late as the
// hardware may let them, and warps run forwards or backwards between barriers: a tile that is
// overwritten too early, or read too soon, gives wrong numbers.
#pragma once
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <vector>

#include "core/check.h"
#include "core/random.h"
#include "kernels/cuda/attend_tile.h"

namespace longnet {

// The two kinds of 16 bits that the kernels read.
struct EmulatedBf16 {
  static float value(uint16_t bits) { return bf16_value(bits); }
  static uint16_t bits(float x) { return bf16_bits(x); }
};
struct EmulatedFp16 {
  static float value(uint16_t bits) { return float(std::bit_cast<_Float16>(bits)); }
  static uint16_t bits(float x) { return std::bit_cast<uint16_t>(_Float16(x)); }
};

template <class Element>
class EmulatedWarp {
 public:
  template <class T>
  using Reg = std::array<T, 32>;

  EmulatedWarp() = default;
  explicit EmulatedWarp(std::vector<uint16_t>* shared) : shared_(shared) {}

  template <class F>
  void lanes(F f) const {
    for (int lane = 0; lane < 32; ++lane) f(lane);
  }
  void sync() const {}

  // PTX ISA, ldmatrix .x4: lane l gives the address of row l % 8 of matrix l / 8; lane l gets the
  // elements (l / 4, 2 (l % 4)) and the next one of each matrix.
  void ldmatrix(Reg<uint32_t> (&out)[4], const Reg<int>& address) const {
    load(out, address, [](int lane, int e) { return std::pair{lane / 4, lane % 4 * 2 + e}; });
  }
  // With .trans it gets the elements (2 (l % 4), l / 4) and the one below.
  void ldmatrix_transposed(Reg<uint32_t> (&out)[4], const Reg<int>& address) const {
    load(out, address, [](int lane, int e) { return std::pair{lane % 4 * 2 + e, lane / 4}; });
  }

  // PTX ISA, mma.m16n8k16 with 16-bit floats: where each lane's elements stand in A, B and C.
  void mma(Reg<float> (&c)[4], const Reg<uint32_t> (&a)[4], const Reg<uint32_t>& b0,
           const Reg<uint32_t>& b1) const {
    float A[16][16], B[16][8];
    for (int lane = 0; lane < 32; ++lane) {
      const int group = lane >> 2, in_group = lane % 4;
      for (int i = 0; i < 8; ++i) {  // a_i
        const int row = (i / 2) % 2 == 0 ? group : group + 8;
        const int col = in_group * 2 + (i & 1) + (i < 4 ? 0 : 8);
        A[row][col] = Element::value(uint16_t(a[i / 2][size_t(lane)] >> 16 * (i & 1)));
      }
      for (int i = 0; i < 4; ++i) {  // b_i
        const int row = in_group * 2 + (i & 1) + (i < 2 ? 0 : 8);
        B[row][group] = Element::value(uint16_t((i < 2 ? b0 : b1)[size_t(lane)] >> 16 * (i & 1)));
      }
    }
    for (int lane = 0; lane < 32; ++lane)
      for (int i = 0; i < 4; ++i) {  // c_i
        const int row = i < 2 ? lane >> 2 : (lane >> 2) + 8, col = lane % 4 * 2 + (i & 1);
        float sum = c[i][size_t(lane)];
        for (int k = 0; k < 16; ++k) sum += A[row][k] * B[k][col];
        c[i][size_t(lane)] = sum;
      }
  }

  void quad_max(Reg<float>& x) const {
    for (size_t lane = 0; lane < 32; lane += 4)
      std::fill_n(&x[lane], 4, *std::max_element(&x[lane], &x[lane] + 4));
  }
  void quad_sum(Reg<float>& x) const {
    for (size_t lane = 0; lane < 32; lane += 4)
      std::fill_n(&x[lane], 4, (x[lane] + x[lane + 1]) + (x[lane + 2] + x[lane + 3]));
  }
  static float exp2(float x) { return std::exp2(x); }
  static float log2(float x) { return std::log2(x); }
  static uint32_t pack(float low, float high) {
    return uint32_t{Element::bits(low)} | uint32_t{Element::bits(high)} << 16;
  }
  static void store2(float* at, float x, float y) {
    at[0] = x;
    at[1] = y;
  }

 private:
  template <class Place>
  void load(Reg<uint32_t> (&out)[4], const Reg<int>& address, Place place) const {
    for (int matrix = 0; matrix < 4; ++matrix)
      for (int lane = 0; lane < 32; ++lane) {
        uint32_t word = 0;
        for (int e = 0; e < 2; ++e) {
          const auto [row, col] = place(lane, e);
          const int byte = address[size_t(matrix * 8 + row)];
          check(byte % 16 == 0, "ldmatrix wants 16-byte aligned rows, got byte ", byte);
          word |= uint32_t{shared_->at(size_t(byte / 2 + col))} << 16 * e;
        }
        out[matrix][size_t(lane)] = word;
      }
  }
  std::vector<uint16_t>* shared_ = nullptr;
};

template <class Shape, class Element = EmulatedBf16>
class EmulatedBlock {
 public:
  struct Order {
    bool copies_land_late = false, warps_backwards = false;
  };
  explicit EmulatedBlock(Order order)
      : order_(order), shared_(size_t(Shape::kSharedBytes / 2), 0x7FFF), warps_(Shape::kWarps) {}

  template <class F>
  void threads(F f) {
    for (int thread = 0; thread < Shape::kThreads; ++thread) f(thread);
  }
  template <class F>
  void warps(F f) {
    for (int i = 0; i < Shape::kWarps; ++i) {
      const int index = order_.warps_backwards ? Shape::kWarps - 1 - i : i;
      f(warps_[size_t(index)], EmulatedWarp<Element>(&shared_), index);
    }
  }
  void copy16(int byte, const void* from, bool valid) {
    check(reinterpret_cast<uintptr_t>(from) % 16 == 0, "a copy from ", from);
    Copy copy{.byte = byte, .values = {}};
    if (valid) std::memcpy(copy.values.data(), from, 16);
    if (order_.copies_land_late)
      pending_.push_back(copy);
    else
      land(copy);
  }
  void commit() {}
  void wait_for_copies() {
    for (const Copy& copy : pending_) land(copy);
    pending_.clear();
  }
  void sync() {}

 private:
  struct Copy {
    int byte;
    std::array<uint16_t, 8> values;
  };
  void land(const Copy& copy) {
    for (size_t i = 0; i < 8; ++i) shared_.at(size_t(copy.byte) / 2 + i) = copy.values[i];
  }
  Order order_;
  std::vector<uint16_t> shared_;
  std::vector<WarpTile<Shape, EmulatedWarp<Element>>> warps_;
  std::vector<Copy> pending_;
};

}  // namespace longnet
