.DEFAULT_GOAL := tools

include hack/tools/tools.mk
