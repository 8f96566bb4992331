#pragma once
#include <string>
#include <string_view>

namespace longnet {

std::string sha256_hex(std::string_view bytes);  // 64 lower-case digits

}  // namespace longnet
