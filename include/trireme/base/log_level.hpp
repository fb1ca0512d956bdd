// How much a message matters.
#pragma once

namespace trireme::log {

enum class Level { debug, info, warning, error };

}  // namespace trireme::log
