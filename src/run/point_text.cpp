#include "run/point_text.h"

#include "core/check.h"
#include "io/axes.h"
#include "io/units.h"

namespace longnet {

std::string describe(const PointParams& p) {
  const std::string options = options_text(p);
  return concat(p.algorithm, options.empty() ? "" : " ", options,
                " N=", format_tokens(p.problem.seq_len), " P=", p.ranks,
                p.problem.batch > 1 ? concat(" batch=", p.problem.batch) : "");
}

}  // namespace longnet
