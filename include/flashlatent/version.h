// The version, for the preprocessor. find_package() knows it too.
#pragma once

#define FLASHLATENT_VERSION_MAJOR 0
#define FLASHLATENT_VERSION_MINOR 1
#define FLASHLATENT_VERSION_PATCH 0
#define FLASHLATENT_VERSION "0.1.0"
