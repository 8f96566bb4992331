// Two sets of programs share a fingerprint where their ranks do the same, and only there.
#include "simulate/compact_program.h"

#include <gtest/gtest.h>

#include <functional>
#include <utility>

namespace longnet {
namespace {

// Four ranks: an attend, a message to each of two others, a gather that waits for it, two merges.
LooseProgram program_of(Rank rank) {
  LooseProgram p;
  const int attend = p.add(OpKind::kAttend, 0, 1.0);
  const int send = p.add(OpKind::kSend, (rank + 1) % 4, 64);
  const int recv = p.add(OpKind::kRecv, (rank + 3) % 4, 64);
  p.add(OpKind::kSend, (rank + 2) % 4, 32);
  p.add(OpKind::kRecv, (rank + 2) % 4, 32);
  p.collectives.push_back({{0, 1, 4}, {1.0, 2.0, 3.0}});
  p.add(OpKind::kCollective, 0, 0, {send});
  p.add(OpKind::kMerge, -1, 0.5, {attend, recv});
  p.add(OpKind::kMerge, -1, 0.5);
  p.memory_by_tag["activations"] = 128;
  for (size_t i = 0; i < p.ops.size(); ++i) p.ops[i].issued_s = 0.1 * double(i + 1);
  return p;
}

ProgramSet set_of(const std::function<void(LooseProgram&)>& change) {
  std::vector<LooseProgram> programs;
  for (Rank rank = 0; rank < 4; ++rank) programs.push_back(program_of(rank));
  change(programs[2]);
  return pack_all(programs, ExecutionKind::kStreams);
}

TEST(Fingerprint, IsThatOfACopyAndOfTheSameMadeAgain) {
  const ProgramSet set = set_of([](LooseProgram&) {});
  const ProgramSet copy = set;
  EXPECT_EQ(fingerprint(copy), fingerprint(set));
  EXPECT_EQ(fingerprint(set_of([](LooseProgram&) {})), fingerprint(set));
}

TEST(Fingerprint, ChangesWithEveryKindOfField) {
  const uint64_t same = fingerprint(set_of([](LooseProgram&) {}));
  const std::vector<std::pair<const char*, std::function<void(LooseProgram&)>>> changes{
      {"kind", [](LooseProgram& p) { p.ops[0].kind = OpKind::kAttendBackward; }},
      {"seconds", [](LooseProgram& p) { p.ops[0].amount = 1.0000001; }},
      {"bytes", [](LooseProgram& p) { p.ops[1].amount = 65; }},
      {"branch", [](LooseProgram& p) { p.ops[0].peer = 1; }},
      {"peer of a send", [](LooseProgram& p) { std::swap(p.ops[1].peer, p.ops[3].peer); }},
      {"peer of a receive", [](LooseProgram& p) { std::swap(p.ops[2].peer, p.ops[4].peer); }},
      {"distance of a send", [](LooseProgram& p) { p.ops[3].peer = 1; }},
      {"distance of a receive", [](LooseProgram& p) { p.ops[4].peer = 3; }},
      {"a wait less", [](LooseProgram& p) { p.ops[6].after.pop_back(); }},
      {"a wait for another", [](LooseProgram& p) { p.ops[6].after.back() = 4; }},
      {"a wait of another", [](LooseProgram& p) { std::swap(p.ops[6].after, p.ops[7].after); }},
      {"a further op", [](LooseProgram& p) { p.add(OpKind::kPack, -1, 0); }},
      {"an op less", [](LooseProgram& p) { p.ops.pop_back(); }},
      {"seconds of a collective", [](LooseProgram& p) { p.collectives[0].seconds[1] = 2.5; }},
      {"group of a collective",
       [](LooseProgram& p) {
         p.collectives[0].group = {0, 2, 2};
       }},
      {"time of issue", [](LooseProgram& p) { p.ops[3].issued_s = 0.45; }},
      {"memory", [](LooseProgram& p) { p.memory_by_tag["activations"] = 129; }},
  };
  for (const auto& [name, change] : changes) EXPECT_NE(fingerprint(set_of(change)), same) << name;
}

TEST(Fingerprint, ChangesWithTheRanksThatAProgramStandsFor) {
  const auto of = [](const Twins& twins) { return fingerprint({twins, {}}); };
  const uint64_t same = of({.ranks = 8, .period = 2});
  EXPECT_NE(of({.ranks = 16, .period = 2}), same);
  EXPECT_NE(of({.ranks = 8, .period = 4}), same);
  EXPECT_NE(of({.ranks = 8, .period = 2, .exclusive_or = true}), same);
}

}  // namespace
}  // namespace longnet
