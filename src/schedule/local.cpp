// Attention of one rank over all tokens: {attend q x kv -> output}.
#include "core/check.h"
#include "schedule/program_builder.h"
#include "schedule/registry.h"

namespace longnet {

Schedule local_attention(const ShardedProblem& sharded) {
  return {"local", sharded, [sharded](Rank rank) {
            check(sharded.layout.world_size() == 1, "local runs on one rank");
            ProgramBuilder build(sharded, rank);
            build.add(build.attend(build.kv(), build.output()));
            return build.take();
          }};
}

}  // namespace longnet
