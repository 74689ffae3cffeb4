#!/bin/bash
exec /usr/bin/protoc "$@"
