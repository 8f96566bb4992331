#include "core/check.h"

namespace longnet {

void fail_at(const std::string& message, std::source_location where) {
  std::string_view file = where.file_name();
  if (const auto src = file.rfind("/src/"); src != std::string_view::npos)
    file.remove_prefix(src + 1);
  throw Error(concat(message, " (", file, ':', where.line(), ')'));
}

}  // namespace longnet
