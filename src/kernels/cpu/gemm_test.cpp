// Products of matrices of the cpu kernel against those of the reference.
#include <gtest/gtest.h>

#include "kernels/testing/model_case.h"

namespace longnet {
namespace {

using GemmTest = ModelKernelTest;

struct GemmCase {
  int64_t m, n, k;
  bool transpose_a = false, transpose_b = false, accumulate = false, bias = false;
  DType a = DType::kFloat32, b = DType::kFloat32, c = DType::kFloat32;
};

Outputs run_gemm(const GemmCase& g, const Call& call) {
  Values a = g.transpose_a ? Values(g.k, g.m, 1, 5, g.a) : Values(g.m, g.k, 1, 5, g.a);
  Values b = g.transpose_b ? Values(g.n, g.k, 2, 2, g.b) : Values(g.k, g.n, 2, 2, g.b);
  Values c(g.m, g.n, 3, 7, g.c), bias(1, g.n, 4, 0);
  const GemmTask task{a.matrix(),
                      b.matrix(),
                      c.matrix(),
                      g.transpose_a,
                      g.transpose_b,
                      g.accumulate,
                      g.bias ? bias.floats() : nullptr};
  call.run(task);
  return {c};
}

std::string name_of(const GemmCase& g) {
  return concat(g.m, " x ", g.n, " x ", g.k, g.transpose_a ? " T" : " N", g.transpose_b ? "T" : "N",
                g.accumulate ? " accumulate" : "", g.bias ? " bias" : "", " ", to_string(g.a), " ",
                to_string(g.b), " ", to_string(g.c));
}

// All four transpositions of one case, with each of: plain, bias, accumulate.
std::vector<GemmCase> all_ways(GemmCase g) {
  std::vector<GemmCase> cases;
  for (int way = 0; way < 12; ++way) {
    g.transpose_a = way % 2 != 0;
    g.transpose_b = way / 2 % 2 != 0;
    g.bias = way / 4 == 1;
    g.accumulate = way / 4 == 2;
    cases.push_back(g);
  }
  return cases;
}

TEST_F(GemmTest, OddShapes) {
  for (const GemmCase shape : std::initializer_list<GemmCase>{{1, 1, 1},
                                                              {5, 3, 2},
                                                              {7, 17, 33},
                                                              {6, 64, 16},
                                                              {13, 65, 70},
                                                              {49, 127, 9},
                                                              {100, 30, 257},
                                                              {3, 520, 300},
                                                              {50, 40, 600}})
    for (const GemmCase& g : all_ways(shape))
      expect_like_reference(name_of(g), [&](const Call& call) { return run_gemm(g, call); });
}

TEST_F(GemmTest, SeveralBlocks) {  // more rows, or columns, than one has
  for (const GemmCase& g : all_ways({1000, 20, 20}))
    expect_like_reference(name_of(g), [&](const Call& call) { return run_gemm(g, call); });
  for (const GemmCase& g : all_ways({60, 1100, 12}))
    expect_like_reference(name_of(g), [&](const Call& call) { return run_gemm(g, call); });
}

TEST_F(GemmTest, EmptyMatrices) {
  for (const GemmCase shape : std::initializer_list<GemmCase>{{0, 5, 3}, {5, 0, 3}, {5, 20, 0}})
    for (const GemmCase& g : all_ways(shape))
      expect_like_reference(name_of(g), [&](const Call& call) { return run_gemm(g, call); });
}

TEST_F(GemmTest, Bf16) {
  const DType fp32 = DType::kFloat32, bf16 = DType::kBFloat16;
  for (const DType a : {fp32, bf16})
    for (const DType b : {fp32, bf16})
      for (const DType c : {fp32, bf16})
        for (GemmCase g : all_ways({31, 45, 300})) {
          g.a = a, g.b = b, g.c = c;
          // Numbers that lie near a tie may be rounded to the other side.
          expect_like_reference(
              name_of(g), [&](const Call& call) { return run_gemm(g, call); },
              c == bf16 ? 3e-4 : 1e-6);
        }
}

}  // namespace
}  // namespace longnet
