// The version, as macros. CMakeLists.txt and pyproject.toml read it from here.
#pragma once

#define FLASHLATENT_VERSION_MAJOR 0
#define FLASHLATENT_VERSION_MINOR 3
#define FLASHLATENT_VERSION_PATCH 0
#define FLASHLATENT_VERSION "0.3.0"
