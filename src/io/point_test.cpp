#include "io/point.h"

#include <gtest/gtest.h>

#include <set>

namespace longnet {
namespace {

TEST(Expand, IdOfAKnownPointNeverChanges) {
  PointParams p;
  p.algorithm = "ring";
  p.problem = {.seq_len = 8192, .num_heads = 12, .num_kv_heads = 12};
  p.pattern = dense_pattern(8192);
  EXPECT_EQ(
      canonical_params_json(p),
      R"({"algorithm":"ring","batch":1,"branches":[{"dilation_rate":1,"segment_length":8192}],)"
      R"("causal":false,"collective":"native",)"
      R"("dtype":"fp32","gather_scope":"segment_group","head_dim":64,"head_slice":0,"heads":12,)"
      R"("kernel":"cpu","kv_heads":12,)"
      R"("layout":"contiguous","mix":"lse","node_size":0,"offset":"paper","phase_parts":1,)"
      R"("ranks":1,)"
      R"("ring_inner":0,"seed":1,"seq_len":8192,)"
      R"("threads":1,"ulysses_degree":0})");
  const std::string id = point_id(p);
  p.transport = "mpi";
  p.mode = Mode::kSimulated;
  EXPECT_EQ(point_id(p), id);
  p.problem.seed = 2;
  EXPECT_NE(point_id(p), id);
}

TEST(Expand, EveryOptionChangesTheId) {
  PointParams base;
  base.algorithm = "ring";
  base.problem.seq_len = 64;
  base.pattern = sparse_pattern(8, 2);
  std::set<std::string> ids{point_id(base)};
  const auto add = [&](auto change) {
    PointParams p = base;
    change(p);
    EXPECT_TRUE(ids.insert(point_id(p)).second) << canonical_params_json(p);
  };
  add([](PointParams& p) { p.layout = LayoutKind::kZigzag; });
  add([](PointParams& p) { p.collective = "ring"; });
  add([](PointParams& p) { p.options.ulysses_degree = 2; });
  add([](PointParams& p) { p.options.ring_inner = 2; });
  add([](PointParams& p) { p.options.head_slice = 2; });
  add([](PointParams& p) { p.options.keep_gathered = true; });
  add([](PointParams& p) { p.node_size = 2; });
  add([](PointParams& p) { p.replicas = 2; });
  add([](PointParams& p) { p.pass = Pass::kBackward; });
  add([](PointParams& p) { p.pattern.branches[1].summary_tokens = 3; });
}

}  // namespace
}  // namespace longnet
